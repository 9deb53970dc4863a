{{- define "weir.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 56 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 56 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "weir.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "weir.labels" -}}
{{ include "weir.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "weir.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* What the schema of the values cannot say. */}}
{{- define "weir.sense" -}}
{{- if .Values.autoscaling.enabled -}}
{{- if gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas) -}}
{{- fail "autoscaling.minReplicas is more than autoscaling.maxReplicas" -}}
{{- end -}}
{{- if not (dig "requests" "cpu" "" .Values.resources) -}}
{{- fail "autoscaling.enabled needs resources.requests.cpu: the target is a share of it" -}}
{{- end -}}
{{- end -}}
{{- $pods := ternary .Values.autoscaling.minReplicas .Values.replicaCount .Values.autoscaling.enabled | int -}}
{{- $least := .Values.podDisruptionBudget.minAvailable -}}
{{- if and .Values.podDisruptionBudget.enabled (gt $pods 1) (not (kindIs "string" $least)) (ge (int $least) $pods) -}}
{{- fail "podDisruptionBudget.minAvailable leaves no pod to evict: it must be less than replicaCount (or autoscaling.minReplicas)" -}}
{{- end -}}
{{- if eq (int .Values.containerPort) (int .Values.health.port) -}}
{{- fail "containerPort and health.port must differ" -}}
{{- end -}}
{{- end }}

{{/* What weir and its reloader both see. */}}
{{- define "weir.mounts" -}}
- name: sites
  mountPath: /etc/weir/conf.d
  readOnly: true
{{- if .Values.config }}
- name: main
  mountPath: /etc/weir/nginx.conf
  subPath: nginx.conf
  readOnly: true
{{- end }}
- name: tmp
  mountPath: /tmp
{{- end }}
