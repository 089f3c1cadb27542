# The generator service with our own engine over the public diffusers pipeline.
# Build it with containers/build.sh, from the repository's root. The base is a Python 3.11 to 3.13 on Debian: PyTorch's
# wheels bring CUDA's libraries, and the container runtime mounts the driver. Weights are fetched at run time, never built in.
ARG BASE_IMAGE=docker.io/library/python
# No default: the digest of the base that you reviewed.
ARG BASE_DIGEST

FROM ${BASE_IMAGE}@${BASE_DIGEST} AS build
ARG SOURCE_SHA
WORKDIR /build
COPY pyproject.toml hatch_build.py README.md LICENSE constraints.txt ./
COPY src src
# uv, since pip cannot leave out a requirement: pyproject.toml replaces the OpenCV build that wants libGL by the headless one.
# Bytecode is written here: the service may not write into /opt/venv. uv gets no cache into a layer.
ENV UV_NO_CACHE=1 \
    UV_COMPILE_BYTECODE=1
RUN python -m venv /opt/uv \
    && /opt/uv/bin/pip install --no-cache-dir uv==0.12.24
RUN : "${SOURCE_SHA:?give the commit that is built}" \
    && python -m venv /opt/venv \
    && NPA_IMAGE_SOURCE_SHA="${SOURCE_SHA}" /opt/uv/bin/uv pip install --python /opt/venv/bin/python \
        --constraint constraints.txt '.[diffusers,guardrails]' opencv-python-headless

FROM ${BASE_IMAGE}@${BASE_DIGEST}
ARG BASE_IMAGE
ARG BASE_DIGEST
ARG SOURCE_SHA
LABEL org.opencontainers.image.title="cosmos3-serve generator, diffusers engine" \
      org.opencontainers.image.description="Cosmos3-Nano generation on Ray Serve; weights are fetched at run time" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${SOURCE_SHA}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}" \
      org.opencontainers.image.base.digest="${BASE_DIGEST}"
# tini ends what Ray's processes leave behind. Its version is that of the base's distribution.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home --home-dir /var/lib/cosmos3 cosmos3 \
    && install -d -o 1000 -g 1000 /outputs /opt/npa-model-cache
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH \
    HOME=/var/lib/cosmos3 \
    PYTHONUNBUFFERED=1 \
    NPA_IMAGE_SOURCE_SHA=${SOURCE_SHA} \
    COSMOS3_ENGINE=diffusers \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility,video
USER 1000:1000
WORKDIR /var/lib/cosmos3
# Stops a build whose guarded start could not import what it needs, for example for want of a shared library.
RUN ["python", "-c", "from cosmos3_serve.generator.guardrails.packages import import_packages as i; i('diffusers')"]
EXPOSE 8000
STOPSIGNAL SIGTERM
# Liveness, with the service's own token: answered while weights load and whatever the load. Readiness is another question.
HEALTHCHECK --interval=30s --timeout=10s --start-period=30m --retries=3 \
    CMD ["cosmos3-probe", "generator", "--timeout", "8"]
ENTRYPOINT ["tini", "--", "npa", "workbench", "cosmos3"]
CMD ["ray-serve", "--world-size", "1", "--max-batch-size", "4"]
