{{- define "weir-ingress.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "weir-ingress.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "weir-ingress.labels" -}}
{{ include "weir-ingress.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* The namespace that is watched with scope.enabled. */}}
{{- define "weir-ingress.watched" -}}
{{- .Values.scope.namespace | default .Release.Namespace -}}
{{- end }}

{{- define "weir-ingress.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The file that weir starts with. */}}
{{- define "weir-ingress.base" -}}
{{- if .Values.base -}}
{{- .Values.base -}}
{{- else -}}
{{- $text := .Files.Get "files/ingress.conf" -}}
{{- if .Values.ports.ipv6 -}}
{{- $text = replace "listen 8081;" "listen 8081;\n        listen [::]:8081;" $text -}}
{{- end -}}
{{- if .Values.acme.enabled -}}
{{- $text = replace "http {\n" (printf "http {\n%s\n" (include "weir-ingress.issuer" .)) $text -}}
{{- end -}}
{{- if .Values.http3.hostKeySecret -}}
{{- $text = replace "http {\n" "http {\n    quic_host_key /etc/weir/quic/key;\n" $text -}}
{{- end -}}
{{- $text -}}
{{- end -}}
{{- end }}

{{/* Who is asked for certificates. */}}
{{- define "weir-ingress.issuer" }}
    acme_issuer acme {
        uri {{ .Values.acme.uri }};
        state_path /var/lib/weir-acme/state;
        {{- if .Values.acme.acceptTermsOfService }}
        accept_terms_of_service;
        {{- end }}
        {{- with .Values.acme.contact }}
        contact {{ . }};
        {{- end }}
        {{- with .Values.acme.lines }}
        {{- . | trim | nindent 8 }}
        {{- end }}
    }
    acme_shared_zone zone=acme:4m;
{{- end }}

{{/* A value of the ConfigMap as text. Helm reads numbers as floats: 10485760 would be 1.048576e+07. */}}
{{- define "weir-ingress.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}
{{- printf "%.0f" . -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end }}

{{/* What the schema of the values cannot say. */}}
{{- define "weir-ingress.sense" -}}
{{- if .Values.autoscaling.enabled -}}
{{- if ne .Values.kind "Deployment" -}}
{{- fail "autoscaling.enabled needs kind: Deployment; a DaemonSet has a pod on each node" -}}
{{- end -}}
{{- if gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas) -}}
{{- fail "autoscaling.minReplicas is more than autoscaling.maxReplicas" -}}
{{- end -}}
{{- if not (dig "weir" "requests" "cpu" "" .Values.resources) -}}
{{- fail "autoscaling.enabled needs resources.weir.requests.cpu: the target is a share of it" -}}
{{- end -}}
{{- end -}}
{{- if eq .Values.kind "Deployment" -}}
{{- $pods := ternary .Values.autoscaling.minReplicas .Values.replicaCount .Values.autoscaling.enabled | int -}}
{{- $least := .Values.podDisruptionBudget.minAvailable -}}
{{- if and .Values.podDisruptionBudget.enabled (gt $pods 1) (not (kindIs "string" $least)) (ge (int $least) $pods) -}}
{{- fail "podDisruptionBudget.minAvailable leaves no pod to evict: it must be less than replicaCount (or autoscaling.minReplicas)" -}}
{{- end -}}
{{- end -}}
{{- if gt (int .Values.drainSeconds) (int .Values.terminationGracePeriodSeconds) -}}
{{- fail "drainSeconds is more than terminationGracePeriodSeconds" -}}
{{- end -}}
{{- if .Values.admission.enabled -}}
{{- if not .Values.admission.secretName -}}
{{- fail "admission.enabled needs admission.secretName" -}}
{{- end -}}
{{- if not (or .Values.admission.caBundle .Values.admission.annotations) -}}
{{- fail "admission.enabled needs admission.caBundle, or an annotation that puts it in" -}}
{{- end -}}
{{- end -}}
{{- if .Values.scope.enabled -}}
{{- range $name, $is := dict "gateway" (or .Values.gateway.class .Values.gateway.ports .Values.gateway.services.enabled .Values.gateway.addresses) "admission.enabled" .Values.admission.enabled -}}
{{- if $is -}}
{{- fail (printf "scope.enabled and %s exclude each other: that needs objects and rights of the whole cluster" $name) -}}
{{- end -}}
{{- end -}}
{{- else if .Values.scope.namespace -}}
{{- fail "scope.namespace needs scope.enabled" -}}
{{- end -}}
{{- if .Values.acme.enabled -}}
{{- if not .Values.acme.claim -}}
{{- fail "acme.enabled needs acme.claim: without a volume each new pod would ask for all certificates again" -}}
{{- end -}}
{{- if .Values.base -}}
{{- fail "acme.enabled and base exclude each other: put an acme_issuer into base, and --acme-issuer=NAME into extraArgs" -}}
{{- end -}}
{{- end -}}
{{- $ports := list (printf "TCP %v" (int .Values.ports.http)) (printf "TCP %v" (int .Values.ports.https)) "TCP 80" "TCP 443" "TCP 8081" "TCP 8444" "TCP 10254" -}}
{{- if .Values.http3.enabled -}}
{{- $ports = append (append $ports "UDP 443") (printf "UDP %v" (int .Values.ports.https)) -}}
{{- end -}}
{{- $names := list "http" "https" "http3" "figures" "health" "admission" -}}
{{- if or (eq (int .Values.ports.http) (int .Values.ports.https)) (has (int .Values.ports.http) (list 8081 8444 10254)) (has (int .Values.ports.https) (list 8081 8444 10254)) -}}
{{- fail "ports.http and ports.https must differ from each other, and from 8081, 8444 and 10254" -}}
{{- end -}}
{{- range .Values.gateway.ports -}}
{{- $port := printf "%s %v" (.protocol | default "TCP") (int .port) -}}
{{- if has $port $ports -}}
{{- fail (printf "gateway.ports: port %s is taken" $port) -}}
{{- end -}}
{{- if has .name $names -}}
{{- fail (printf "gateway.ports: the name %s is taken" .name) -}}
{{- end -}}
{{- $ports = append $ports $port -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- range $kind := list "tcp" "udp" -}}
{{- range $number, $to := index $.Values $kind -}}
{{- $port := printf "%s %s" (upper $kind) $number -}}
{{- if or (has $port $ports) (gt (int $number) 65535) -}}
{{- fail (printf "%s: port %s is taken, or no port" $kind $number) -}}
{{- end -}}
{{- if and $.Values.scope.enabled (ne (first (splitList "/" $to)) (include "weir-ingress.watched" $)) -}}
{{- fail (printf "%s: %s is outside of the namespace that scope watches" $kind $to) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.http3.hostKeySecret .Values.base -}}
{{- fail "http3.hostKeySecret and base exclude each other: put a quic_host_key into base" -}}
{{- end -}}
{{- if and .Values.hostPorts.enabled (eq (int .Values.hostPorts.http) (int .Values.hostPorts.https)) -}}
{{- fail "hostPorts.http and hostPorts.https must differ" -}}
{{- end -}}
{{- end }}

{{- define "weir-ingress.contained" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: ["ALL"]
{{- end }}

{{/*
Helm upgrades lists of ports by their numbers alone: a second protocol of a port would take the place of the first. So it must be
there before, where the object is; a new one has both.
*/}}
{{- define "weir-ingress.protocols" -}}
{{- $name := include "weir-ingress.name" . -}}
{{- $space := .Release.Namespace -}}
{{- $wanted := list (dict "name" "https" "port" 443 "protocol" "TCP") -}}
{{- if .Values.http3.enabled -}}
{{- $wanted = append $wanted (dict "name" "http3" "port" 443 "protocol" "UDP" "targetPort" .Values.ports.https) -}}
{{- end -}}
{{- range .Values.gateway.ports -}}
{{- $wanted = append $wanted (dict "name" .name "port" .port "protocol" (.protocol | default "TCP") "targetPort" .port) -}}
{{- end -}}
{{- range $protocol := list "TCP" "UDP" -}}
{{- range $port, $to := index $.Values (lower $protocol) -}}
{{- $wanted = append $wanted (dict "name" (printf "%s-%s" (lower $protocol) $port) "port" (int $port) "protocol" $protocol "targetPort" (int $port)) -}}
{{- end -}}
{{- end -}}
{{- $all := dict -}}
{{- range $wanted -}}
{{- $key := toString .port -}}
{{- $_ := set $all $key (append (get $all $key | default list) .) -}}
{{- end -}}
{{- with lookup "v1" "Service" $space $name -}}
{{- $now := dict -}}
{{- range .spec.ports -}}
{{- $_ := set $now (printf "%v/%s" .port (.protocol | default "TCP")) true -}}
{{- end -}}
{{- $missing := list -}}
{{- range $all -}}
{{- if gt (len .) 1 -}}
{{- range . -}}
{{- if not (hasKey $now (printf "%v/%s" .port .protocol)) -}}
{{- $missing = append $missing (dict "op" "add" "path" "/spec/ports/-" "value" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $missing -}}
{{- fail (printf "helm cannot add a second protocol to a port of a Service that is there. Add it first, then upgrade again:\n\n    kubectl --namespace %s patch service %s --type json --patch '%s'\n" $space $name (toJson $missing)) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.http3.enabled .Values.hostPorts.enabled -}}
{{- with lookup "apps/v1" .Values.kind $space $name -}}
{{- $there := false -}}
{{- range (first .spec.template.spec.containers).ports -}}
{{- if eq (.name | default "") "http3" -}}{{- $there = true -}}{{- end -}}
{{- end -}}
{{- if not $there -}}
{{- fail (printf "helm cannot add a second protocol to a port of pods that are there. Let it make them anew, then upgrade again; the pods run on:\n\n    kubectl --namespace %s delete %s %s --cascade=orphan\n" $space (lower $.Values.kind) $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
