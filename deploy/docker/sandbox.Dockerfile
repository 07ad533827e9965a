# An ordinary sandbox: Debian with the tools that coding agents use most, and the worker as its PID 1.
FROM sandbus/workerd:latest AS workerd

FROM debian:bookworm-slim
ARG VERSION=dev
LABEL org.opencontainers.image.title="sandbus sandbox" \
      org.opencontainers.image.description="Debian with usual tools, served by workerd" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
RUN apt-get update -q && \
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
      ca-certificates curl file git less make patch procps python3 ripgrep unzip xz-utils && \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/*
RUN useradd --uid 1000 --create-home --shell /bin/bash agent && install -d -o agent -g agent /work
COPY --from=workerd /workerd /usr/local/bin/workerd
USER 1000:1000
WORKDIR /work
ENTRYPOINT ["/usr/local/bin/workerd"]
