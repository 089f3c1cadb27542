# The client: submit, verify, publish, preflight, review, benchmark (its plots need matplotlib). CPU only, no Ray, no torch.
# FFmpeg makes the video of the smoke test; the benchmark's come from PyAV, which brings the same libraries.
# Build it with containers/build.sh, from the repository's root. The base is a Python 3.11 to 3.13 on Debian.
ARG BASE_IMAGE=docker.io/library/python
# No default: the digest of the base that you reviewed.
ARG BASE_DIGEST

FROM ${BASE_IMAGE}@${BASE_DIGEST} AS build
ARG SOURCE_SHA
WORKDIR /build
COPY pyproject.toml hatch_build.py README.md LICENSE constraints.txt ./
COPY src src
# The build refuses what is no full commit id (hatch_build.py). Versions come from constraints.txt; pip gets no cache into a layer.
RUN : "${SOURCE_SHA:?give the commit that is built}" \
    && python -m venv /opt/venv \
    && NPA_IMAGE_SOURCE_SHA="${SOURCE_SHA}" /opt/venv/bin/pip install --no-cache-dir --constraint constraints.txt '.[bench]'

FROM ${BASE_IMAGE}@${BASE_DIGEST}
ARG BASE_IMAGE
ARG BASE_DIGEST
ARG SOURCE_SHA
LABEL org.opencontainers.image.title="cosmos3-serve client" \
      org.opencontainers.image.description="Batches from S3 to S3 against a Cosmos3 generator service; CPU only" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${SOURCE_SHA}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}" \
      org.opencontainers.image.base.digest="${BASE_DIGEST}"
# Versions of the distribution's packages are those of the base.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ffmpeg \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home --home-dir /var/lib/cosmos3 cosmos3
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH \
    HOME=/var/lib/cosmos3 \
    PYTHONUNBUFFERED=1
USER 1000:1000
WORKDIR /var/lib/cosmos3
# A command that ends by itself: there is nothing to ask.
HEALTHCHECK NONE
ENTRYPOINT ["npa", "workbench", "cosmos3"]
CMD ["--help"]
