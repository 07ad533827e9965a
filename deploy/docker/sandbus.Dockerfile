# The command line: registrar, gateway, credentials, and a shell for people.
# Cross-compiled: --build-arg TARGETARCH=arm64 (BuildKit sets it from --platform by itself).
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY . .
ARG TARGETARCH=amd64
ARG VERSION=dev
# All binaries, in a stage that the two Dockerfiles have alike, so that it is built once. No path of the builder, no time
# and no state of a checkout is in them: the same source gives the same bytes.
RUN CGO_ENABLED=0 GOOS=linux GOARCH=${TARGETARCH} GOFLAGS=-buildvcs=false \
    go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /out/ ./cmd/sandbus ./cmd/workerd ./loadtest

FROM debian:bookworm-slim
ARG VERSION=dev
LABEL org.opencontainers.image.title="sandbus" \
      org.opencontainers.image.description="command line, registrar and gateway of sandbus" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
RUN useradd --uid 1000 --create-home --shell /bin/bash sandbus
COPY --from=build /out/sandbus /out/loadtest /usr/local/bin/
USER 1000:1000
WORKDIR /home/sandbus
ENTRYPOINT ["sandbus"]
