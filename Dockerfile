# Handoff as an image: one static program that runs as nobody, and nothing beside it.
# "docker compose build" makes it; docs/operations/containers.md says how to put an
# agent of yours into one like it.

FROM golang:1.26.8-alpine AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 go build -trimpath -ldflags="-s -w" -o /out/ ./cmd/handoff ./docs/operations/agent \
    && mkdir /out/empty

# From here on tests/proof/compose builds these very lines, with programs built on the host
# instead of the stage above: no base image is needed for them.
FROM scratch AS handoff
LABEL org.opencontainers.image.title="Handoff" \
      org.opencontainers.image.description="Moves work between agents, durably" \
      org.opencontainers.image.source="https://github.com/agenthandoff/handoff"
COPY --from=build /out/handoff /handoff
# Where a volume is mounted it takes its owner from what the image has there. /tmp is
# for agents, who get files of their own from "handoff work".
COPY --from=build --chown=65532:65532 /out/empty/ /var/lib/handoff/
COPY --from=build --chown=65532:65532 /out/empty/ /tmp/
ENV PATH=/
USER 65532:65532
# No shell is here to check with. It asks the process of this container where
# $HANDOFF_METRICS says that it shows how it is; else whether the engine answers.
HEALTHCHECK --interval=10s --timeout=8s --start-period=30s --retries=3 CMD ["/handoff", "doctor", "--self"]
ENTRYPOINT ["/handoff"]
CMD ["--help"]

# The example agent: Handoff, and a program that it runs. As process 1 "handoff work" reaps what
# its programs leave behind: no init is needed.
FROM handoff AS agent
COPY --from=build /out/agent /agent
CMD ["work", "--agent", "reviewer", "--", "/agent"]
