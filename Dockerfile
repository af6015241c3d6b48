# docker build -t radixlm . && docker run --rm -p 30000:30000 -v radixlm:/home/radixlm/.cache radixlm
# For CPUs. With a model: -v ~/models:/models:ro radixlm /models/qwen3-0.6b --kv-tokens 100000
# For KubeRay: docker build --build-arg 'EXTRAS=[ray]' -t radixlm:ray .

FROM python:3.11-slim AS build
WORKDIR /build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
# A layer of its own, the large one: it changes with torch's version only.
COPY constraints.txt ./
RUN python -m venv --without-pip /opt/radixlm \
    && pip --python /opt/radixlm install --no-compile --no-deps \
        --index-url https://download.pytorch.org/whl/cpu "$(grep '^torch==' constraints.txt)"
COPY pyproject.toml README.md LICENSE ./
COPY src src
ARG EXTRAS=
# Of the thousands of modules, those that serving imports are compiled: the server may not write.
RUN pip --python /opt/radixlm install --no-compile --constraint constraints.txt ".$EXTRAS" \
    && /opt/radixlm/bin/python -c "import radixlm.server.serve"

FROM python:3.11-slim
# KubeRay asks for a pod's health by wget, and starts Ray in a shell that sets PATH anew.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends wget \
    && rm -rf /var/lib/apt/lists/* \
    && echo "PATH=/opt/radixlm/bin:\$PATH" > /etc/profile.d/radixlm.sh
RUN useradd --uid 10001 --create-home radixlm \
    && install --directory --owner=radixlm --mode=700 /home/radixlm/.cache
COPY --from=build /opt/radixlm /opt/radixlm
ENV PATH=/opt/radixlm/bin:$PATH PYTHONDONTWRITEBYTECODE=1
USER 10001
WORKDIR /home/radixlm
# The kernels that the first start compiles for the processor it runs on.
VOLUME /home/radixlm/.cache
EXPOSE 30000
# Of the usual port, without TLS; with others give --health-cmd.
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:30000/health', timeout=4)"]
ENTRYPOINT ["radixlm", "serve", "--host", "0.0.0.0"]
