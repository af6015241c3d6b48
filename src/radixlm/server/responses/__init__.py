"""/v1/responses: OpenAI's API whose conversations the server keeps."""
