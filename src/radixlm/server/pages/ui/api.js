// What the page asks of the server. The key lives in this tab's storage and in the header only.

const STORED = "radixlm-key";

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }

  get refused() {
    return this.status === 401 || this.status === 403;
  }
}

export function keepKey(key) {
  sessionStorage.setItem(STORED, key);
}

/** Fetch below the page's own place, so that a proxy's prefix stays in front. Throws ApiError. */
export async function ask(path, options = {}) {
  const key = sessionStorage.getItem(STORED);
  const headers = { ...(options.body ? { "Content-Type": "application/json" } : {}) };
  if (key) headers.Authorization = `Bearer ${key}`;
  const answer = await reached(fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" }));
  if (!answer.ok) throw new ApiError(answer.status, await messageOf(answer));
  return answer;
}

/** Browsers say "Failed to fetch", or the like, where nobody answers. */
async function reached(answer) {
  try {
    return await answer;
  } catch (error) {
    throw error instanceof TypeError ? new ApiError(0, "the server does not answer") : error;
  }
}

export async function getJson(path, signal) {
  return (await ask(path, { signal })).json();
}

export async function postJson(path, body, signal) {
  return (await ask(path, { method: "POST", body: JSON.stringify(body), signal })).json();
}

async function messageOf(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `${answer.status} ${answer.statusText}`;
  }
}
