{{- /* One worker group: a pool of replicas bound to it by its specray_* resource. */ -}}
{{- define "specray.group" -}}
{{- $pool := index .root.Values.pools .component -}}
groupName: {{ .component }}
minReplicas: {{ $pool.minReplicas }}
maxReplicas: {{ $pool.maxReplicas }}
rayStartParams: {}
resources:
  {{- toYaml $pool.rayResources | nindent 2 }}
template:
  metadata:
    labels:
      {{- include "specray.selector" . | nindent 6 }}
  spec:
    serviceAccountName: {{ .root.Release.Name }}-worker
    automountServiceAccountToken: false
    {{- include "specray.pull-secrets" .root | nindent 4 }}
    securityContext:
      {{- include "specray.pod-security" .root | nindent 6 }}
    terminationGracePeriodSeconds: {{ $pool.terminationGracePeriodSeconds }}
    {{- include "specray.place" $pool | nindent 4 }}
    {{- if eq .component "router" }}
    affinity:
      podAntiAffinity:
        preferredDuringSchedulingIgnoredDuringExecution:
          - weight: 100
            podAffinityTerm:
              topologyKey: kubernetes.io/hostname
              labelSelector:
                matchLabels:
                  {{- include "specray.selector" . | nindent 18 }}
    {{- end }}
    containers:
      - name: ray-worker
        {{- include "specray.ray-container" .root | nindent 8 }}
        {{- $resources := deepCopy $pool.resources }}
        {{- if ne .root.Values.weights.source "hub" }}{{ $_ := unset $resources.requests "ephemeral-storage" }}{{ end }}
        resources:
          {{- toYaml $resources | nindent 10 }}
        ports:
          - { name: serve, containerPort: 8000 }
          - { name: metrics, containerPort: 8080 }
        readinessProbe: # with Serve's proxy: the service sends it traffic then
          exec:
            command:
              - bash
              - -c
              - >-
                wget --tries 1 -T 2 -q -O- http://localhost:52365/api/local_raylet_healthz | grep success
                && wget --tries 1 -T 10 -q -O- http://localhost:8000/-/healthz | grep success
          initialDelaySeconds: 10
          timeoutSeconds: 12
          periodSeconds: 5
          failureThreshold: 1
        lifecycle:
          preStop:
            exec:
              command:
                - bash
                - -c
                - >-
                  timeout 20 ray drain-node --reason DRAIN_NODE_REASON_PREEMPTION
                  --reason-message "its pod stops" --deadline-remaining-seconds 90
                  && timeout 90 bash -c 'while pgrep -f "ray::(ServeReplica|ProxyActor)"; do sleep 1; done';
                  ray stop
    volumes:
      {{- include "specray.volumes" .root | nindent 6 }}
{{- end }}
