# The generator service with NVIDIA's own engine, in the interpreter that upstream's lock file describes.
# Build it with containers/build.sh, from the repository's root. The base is a CUDA 13 development image on Ubuntu 24.04;
# uv brings the Python that upstream's checkout asks for. Weights are fetched at run time, never built in.
ARG BASE_IMAGE=docker.io/nvidia/cuda
# No default: the digest of the base that you reviewed.
ARG BASE_DIGEST

FROM ${BASE_IMAGE}@${BASE_DIGEST}
ARG BASE_IMAGE
ARG BASE_DIGEST
ARG SOURCE_SHA
# The revision that is the contract; the service proves it by file hashes before it starts.
ARG FRAMEWORK_COMMIT=5e67049cd94acb667786f1e6dd0dab821cb90c97
LABEL org.opencontainers.image.title="cosmos3-serve generator, framework engine" \
      org.opencontainers.image.description="Cosmos3-Nano generation through NVIDIA cosmos-framework on Ray Serve" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${SOURCE_SHA}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}" \
      org.opencontainers.image.base.digest="${BASE_DIGEST}" \
      com.github.nvidia.cosmos-framework.revision="${FRAMEWORK_COMMIT}"
# libgl1 and libglib2.0-0: upstream's lock file brings the OpenCV build that wants them. Versions of the distribution's
# packages are those of the base. Ubuntu's image has a user with the id 1000 already.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates ffmpeg git libgl1 libglib2.0-0 python3-dev python3-venv tini \
    && rm -rf /var/lib/apt/lists/* \
    && usermod --home /var/lib/cosmos3 --move-home ubuntu \
    && install -d -o 1000 -g 1000 /outputs /opt/npa-model-cache
# Its .git stays: one of the two witnesses of the revision. The Python lies where user 1000 may read it.
# Bytecode is written here: the service may not write there.
ENV UV_PYTHON_INSTALL_DIR=/opt/uv/python \
    UV_COMPILE_BYTECODE=1
WORKDIR /opt/cosmos3/cosmos-framework
RUN git init --quiet \
    && git fetch --quiet --depth 1 https://github.com/NVIDIA/cosmos-framework "${FRAMEWORK_COMMIT}" \
    && git checkout --quiet FETCH_HEAD \
    && python3 -m venv /opt/uv \
    && /opt/uv/bin/pip install --no-cache-dir uv==0.12.24 \
    && /opt/uv/bin/uv sync --no-cache --locked --no-editable --extra guardrail --extra serve --group cu130
WORKDIR /build
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src src
RUN : "${SOURCE_SHA:?give the commit that is built}" \
    && NPA_IMAGE_SOURCE_SHA="${SOURCE_SHA}" /opt/uv/bin/uv pip install --no-cache \
        --python /opt/cosmos3/cosmos-framework/.venv/bin/python qwen-vl-utils boto3 'ray[serve]==2.60.0' '.[framework]' \
    && rm -rf /build/src
ENV PATH=/opt/cosmos3/cosmos-framework/.venv/bin:$PATH \
    HOME=/var/lib/cosmos3 \
    PYTHONUNBUFFERED=1 \
    COSMOS_TRAINING=0 \
    NPA_IMAGE_SOURCE_SHA=${SOURCE_SHA} \
    COSMOS3_ENGINE=framework
USER 1000:1000
WORKDIR /var/lib/cosmos3
# Stops a build whose guarded start could not import what it needs, for example for want of a shared library.
RUN ["python", "-c", "from cosmos3_serve.generator.guardrails.packages import import_packages as i; i('framework')"]
EXPOSE 8000
STOPSIGNAL SIGTERM
# Liveness, with the service's own token: answered while weights load and whatever the load. Readiness is another question.
HEALTHCHECK --interval=30s --timeout=10s --start-period=30m --retries=3 \
    CMD ["cosmos3-probe", "generator", "--timeout", "8"]
ENTRYPOINT ["tini", "--", "npa", "workbench", "cosmos3"]
CMD ["ray-serve", "--world-size", "1", "--max-batch-size", "4"]
