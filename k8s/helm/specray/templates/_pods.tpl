{{- /* Parts that pods share. */ -}}

{{- define "specray.labels" -}}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "specray.selector" -}}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "specray.ray-pods" -}}
matchLabels:
  app.kubernetes.io/instance: {{ .Release.Name }}
matchExpressions:
  - { key: app.kubernetes.io/component, operator: In, values: [head, router, draft, target] }
{{- end }}

{{- define "specray.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "specray.pull-secrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "specray.unprivileged" -}}
allowPrivilegeEscalation: false
capabilities: { drop: [ALL] }
runAsNonRoot: true
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "specray.pod-security" -}}
runAsNonRoot: true
runAsUser: 1000
runAsGroup: 100
fsGroup: 100
fsGroupChangePolicy: OnRootMismatch
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "specray.token" -}}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef: {{ toJson .Values.weights.tokenSecret }}
{{- end }}

{{- define "specray.is-mounted" -}}
{{- if has .Values.weights.source (list "claim" "bucket") }}true{{ end }}
{{- end }}

{{- /* The head's container and the workers': image, environment, liveness, weights. */ -}}
{{- define "specray.ray-container" -}}
image: {{ include "specray.image" . }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
securityContext:
  {{- include "specray.unprivileged" . | nindent 2 }}
env:
  - { name: HF_HUB_CACHE, value: /models/hub }
  {{- if include "specray.is-mounted" . }}
  - { name: HF_HUB_OFFLINE, value: "1" }
  {{- else if eq .Values.weights.source "hub" }}
  {{- include "specray.token" . | nindent 2 }}
  {{- end }}
  - name: SPECRAY_STREAM_TOKEN
    valueFrom:
      secretKeyRef: {{ toJson (merge (dict "optional" true) .Values.streamTokenSecret) }}
livenessProbe:
  httpGet: { path: /api/healthz, port: 52365 }
  initialDelaySeconds: 30
  timeoutSeconds: 5
  periodSeconds: 10
  failureThreshold: 60
volumeMounts:
  - name: models
    mountPath: /models
    {{- if include "specray.is-mounted" . }}
    readOnly: true
    {{- end }}
{{- end }}

{{- define "specray.claim" -}}
{{- .Values.weights.claim.existing | default (printf "%s-models" .Release.Name) }}
{{- end }}

{{- define "specray.volumes" -}}
- name: models
  {{- if include "specray.is-mounted" . }}
  persistentVolumeClaim:
    claimName: {{ include "specray.claim" . }}
    readOnly: true
  {{- else }}
  emptyDir: { sizeLimit: {{ .Values.weights.ephemeralSizeLimit }} }
  {{- end }}
{{- end }}

{{- define "specray.place" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* KubeRay hands the Serve config over once the head is ready, and only once. */ -}}
{{- define "specray.wait-for-weights" -}}
{{- if and (eq .Values.weights.source "claim") .Values.weights.claim.download }}
initContainers:
  - name: wait-for-weights
    image: {{ include "specray.image" . }}
    {{- with .Values.image.pullPolicy }}
    imagePullPolicy: {{ . }}
    {{- end }}
    command:
      - bash
      - -ec
      - |
        if [ -z "$MODELS" ]; then echo "MODELS is empty: see components/weights-pvc"; exit 1; fi
        for model in $MODELS; do
          until [ -e "/models/complete/$model" ]; do echo "waiting for $model"; sleep 10; done
        done
    env:
      - { name: MODELS, value: {{ join " " .Values.weights.claim.download | quote }} }
    securityContext:
      {{- include "specray.unprivileged" . | nindent 6 }}
    resources: { requests: { cpu: 100m, memory: 64Mi }, limits: { cpu: 100m, memory: 64Mi } }
    volumeMounts: [{ name: models, mountPath: /models, readOnly: true }]
{{- end }}
{{- end }}
