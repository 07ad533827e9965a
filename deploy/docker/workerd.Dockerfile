# The worker alone, to be copied into any image:
#   COPY --from=sandbus/workerd /workerd /usr/local/bin/workerd
# or side-loaded by an init container:  workerd install /shared
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

FROM scratch
ARG VERSION=dev
LABEL org.opencontainers.image.title="sandbus workerd" \
      org.opencontainers.image.description="serves one sandbox: dials out to a NATS hub and runs what harnesses ask for" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /out/workerd /workerd
USER 65532:65532
ENTRYPOINT ["/workerd"]
