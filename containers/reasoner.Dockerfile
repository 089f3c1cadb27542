# The reasoner service: our gateway and replicas in one environment, vLLM in another, since vLLM pins its own torch.
# Build it with containers/build.sh, from the repository's root. The base is a CUDA development image on Ubuntu 24.04
# (Python 3.12; vLLM's kernels may be compiled at the first start). Weights are fetched at run time, never built in.
ARG BASE_IMAGE=docker.io/nvidia/cuda
# No default: the digest of the base that you reviewed.
ARG BASE_DIGEST

FROM ${BASE_IMAGE}@${BASE_DIGEST}
ARG BASE_IMAGE
ARG BASE_DIGEST
ARG SOURCE_SHA
# That of scripts/setup_reasoner.sh; a test compares.
ARG VLLM_VERSION=0.32.0
LABEL org.opencontainers.image.title="cosmos3-serve reasoner" \
      org.opencontainers.image.description="vLLM replicas behind OpenAI's API; weights are fetched at run time" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${SOURCE_SHA}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}" \
      org.opencontainers.image.base.digest="${BASE_DIGEST}"
# Versions of the distribution's packages are those of the base. Ubuntu's image has a user with the id 1000 already.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential ca-certificates ffmpeg python3-dev python3-venv tini \
    && rm -rf /var/lib/apt/lists/* \
    && usermod --home /var/lib/cosmos3 --move-home ubuntu \
    && install -d -o 1000 -g 1000 /opt/npa-model-cache
RUN python3 -m venv /opt/vllm \
    && /opt/vllm/bin/pip install --no-cache-dir "vllm==${VLLM_VERSION}"
WORKDIR /build
COPY pyproject.toml hatch_build.py README.md LICENSE constraints.txt ./
COPY src src
RUN : "${SOURCE_SHA:?give the commit that is built}" \
    && python3 -m venv /opt/venv \
    && NPA_IMAGE_SOURCE_SHA="${SOURCE_SHA}" /opt/venv/bin/pip install --no-cache-dir --constraint constraints.txt \
        '.[reasoner]' \
    && rm -rf /build/src
ENV PATH=/opt/venv/bin:$PATH \
    HOME=/var/lib/cosmos3 \
    PYTHONUNBUFFERED=1 \
    NPA_IMAGE_SOURCE_SHA=${SOURCE_SHA} \
    COSMOS3_VLLM_PYTHON=/opt/vllm/bin/python
USER 1000:1000
WORKDIR /var/lib/cosmos3
EXPOSE 8000
STOPSIGNAL SIGTERM
# Liveness, with the service's own token: answered while weights load and whatever the load. Readiness is another question.
HEALTHCHECK --interval=30s --timeout=10s --start-period=30m --retries=3 \
    CMD ["cosmos3-probe", "reasoner", "--timeout", "8"]
ENTRYPOINT ["tini", "--", "cosmos3"]
CMD ["reasoner", "serve"]
