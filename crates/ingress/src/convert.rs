//! Converts Ingresses to objects of Gateway API. A finding reports each setting that has no
//! counterpart there.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::networking::v1::{HTTPIngressPath, IngressBackend, IngressTLS};
use serde_json::{Value, json};

use crate::annotations::{Options, PREFIX, Protocol, is_origin, values};
use crate::gateway::ACME_OPTION;
use crate::gateway::objects::GROUP;
use crate::report::{Finding, Findings, ObjectId, Severity};
use crate::settings::Settings;
use crate::snapshot::Snapshot;
use crate::translate::{Source, sources};

/// The result of a conversion.
#[derive(Debug, Default)]
pub struct Converted {
    /// GatewayClass, Gateways, routes.
    pub objects: Vec<Value>,
    /// The findings about Ingresses.
    pub findings: Vec<Finding>,
}

/// The name of the GatewayClass and of each namespace's Gateway.
const NAME: &str = "weir";

/// Annotations that the converted objects carry out.
const OBEYED: &[&str] = &[
    "affinity",
    "affinity-mode",
    "cors-allow-credentials",
    "cors-allow-headers",
    "cors-allow-methods",
    "cors-allow-origin",
    "cors-expose-headers",
    "cors-max-age",
    "enable-cors",
    "permanent-redirect",
    "permanent-redirect-code",
    "rewrite-target",
    "session-cookie-name",
    "ssl-redirect",
    "temporal-redirect",
    "temporal-redirect-code",
    "upstream-vhost",
    "use-regex",
];

/// Annotations that restrict access. Objects without a counterpart for them would let clients in.
const GUARDS: &[&str] = &[
    "allowlist-source-range",
    "auth-secret",
    "auth-tls-secret",
    "auth-type",
    "auth-url",
    "denylist-source-range",
    "satisfy",
    "whitelist-source-range",
];

/// The hosts of a namespace's Gateway.
#[derive(Default)]
struct Hosts {
    /// Hosts with TLS, each with the Secret, if one is named, and the name of the listener.
    secured: BTreeMap<String, (Option<String>, String)>,
}

impl Hosts {
    /// Adds a listener for a host, or the Secret for a listener that has none.
    fn secure(&mut self, host: &str, entry: &IngressTLS) {
        let secret = entry.secret_name.as_ref().filter(|name| !name.is_empty());
        if secret.is_some_and(|name| !values::is_object_name(name)) || !values::is_host(host, true)
        {
            return;
        }
        let name = format!("https-{}", self.secured.len());
        let known = self.secured.entry(host.to_owned()).or_insert((None, name));
        known.0 = known.0.take().or(secret.cloned());
    }
}

struct Work<'a> {
    snapshot: &'a Snapshot,
    findings: Findings,
    hosts: BTreeMap<String, Hosts>,
    routes: Vec<Value>,
}

/// Converts the Ingresses that weir serves.
pub fn convert(snapshot: &Snapshot, settings: &Settings) -> Converted {
    let (list, findings) = sources(snapshot, settings);
    let mut work = Work { snapshot, findings, hosts: BTreeMap::new(), routes: Vec::new() };
    let kept: Vec<Source> = list.into_iter().filter(|source| work.is_convertible(source)).collect();
    for source in &kept {
        work.certificates(source);
    }
    for source in &kept {
        work.source(source);
    }
    let mut objects = vec![json!({ "apiVersion": format!("{GROUP}/v1"), "kind": "GatewayClass",
        "metadata": { "name": NAME }, "spec": { "controllerName": "weir.internal/gateway" } })];
    objects.extend(work.hosts.iter().map(|(namespace, hosts)| gateway(namespace, hosts)));
    objects.extend(work.routes);
    Converted { objects, findings: work.findings.into_sorted() }
}

fn gateway(namespace: &str, hosts: &Hosts) -> Value {
    let mut listeners = vec![json!({ "name": "http", "port": 80, "protocol": "HTTP" })];
    listeners.extend(hosts.secured.iter().map(|(host, (secret, name))| {
        let tls = match secret {
            Some(secret) => json!({ "certificateRefs": [{ "name": secret }] }),
            None => json!({ "options": { ACME_OPTION: "true" } }),
        };
        json!({ "name": name, "port": 443, "protocol": "HTTPS", "hostname": host, "tls": tls })
    }));
    json!({ "apiVersion": format!("{GROUP}/v1"), "kind": "Gateway",
        "metadata": { "name": NAME, "namespace": namespace },
        "spec": { "gatewayClassName": NAME, "listeners": listeners } })
}

impl Work<'_> {
    fn say(&mut self, id: &ObjectId, severity: Severity, about: &str, text: &str) {
        self.findings.add(id, severity, "NoCounterpart", about, text);
    }

    /// Whether an Ingress can be converted, but for what findings report.
    fn is_convertible(&mut self, source: &Source) -> bool {
        let id = &source.id;
        let none = BTreeMap::new();
        let annotations = source.ingress.metadata.annotations.as_ref().unwrap_or(&none);
        let names: Vec<String> = annotations
            .keys()
            .filter_map(|name| name.strip_prefix(PREFIX))
            .map(str::to_owned)
            .collect();
        let mut good = true;
        for name in &names {
            if name == "canary" {
                let text =
                    "its share would be a weight in the main Ingress's route; it is not converted";
                self.say(id, Severity::Error, name, text);
                good = false;
            } else if GUARDS.contains(&name.as_str()) {
                let text = "Gateway API has no such check; the Ingress is not converted, since it would be open";
                self.say(id, Severity::Error, name, text);
                good = false;
            } else if !OBEYED.contains(&name.as_str()) && name != "backend-protocol" {
                self.say(
                    id,
                    Severity::Warning,
                    name,
                    "Gateway API has nothing like it; it is left out",
                );
            }
        }
        if source.options.protocol != Protocol::Http {
            let text = "servers behind need a BackendTLSPolicy, or a GRPCRoute; the Ingress is not converted";
            self.say(id, Severity::Error, "backend-protocol", text);
            good = false;
        }
        good
    }

    /// Adds listeners for the hosts of `tls`. The oldest Ingress that names a Secret for a host
    /// decides.
    fn certificates(&mut self, source: &Source) {
        let spec = source.ingress.spec.as_ref();
        let entries = spec.and_then(|spec| spec.tls.as_deref()).unwrap_or_default();
        let namespace = &source.id.namespace;
        let hosts = self.hosts.entry(namespace.clone()).or_default();
        for entry in entries {
            for host in entry.hosts.iter().flatten() {
                hosts.secure(host, entry);
            }
        }
        let mut left = Vec::new();
        let rules = spec.and_then(|spec| spec.rules.as_deref()).unwrap_or_default();
        for host in rules.iter().filter_map(|rule| rule.host.as_ref()) {
            let wildcard = host.split_once('.').map(|(_, parent)| format!("*.{parent}"));
            let lists = |entry: &IngressTLS, name: &String| {
                entry.hosts.iter().flatten().any(|other| other == name)
            };
            if entries.is_empty() || entries.iter().any(|entry| lists(entry, host)) {
                continue;
            }
            let is_for = |entry: &&IngressTLS| {
                entry.hosts.as_ref().is_none_or(Vec::is_empty)
                    || wildcard.as_ref().is_some_and(|name| lists(entry, name))
            };
            match entries.iter().find(is_for) {
                Some(entry) => hosts.secure(host, entry),
                None => left.push(host),
            }
        }
        for host in left {
            let text = "no entry of tls lists this host: it is served without TLS";
            self.findings.add(&source.id, Severity::Warning, "NoCertificate", host, text);
        }
    }

    fn source(&mut self, source: &Source) {
        let Some(spec) = &source.ingress.spec else { return };
        let rules = spec.rules.as_deref().unwrap_or_default();
        let mut paths: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for rule in rules {
            let host = rule.host.clone().unwrap_or_default();
            if !host.is_empty() && !values::is_host(&host, true) {
                continue;
            }
            if host.starts_with('*') {
                self.say(
                    &source.id,
                    Severity::Warning,
                    &host,
                    "it is any number of labels in Gateway API, and one in an Ingress",
                );
            }
            let list = paths.entry(host).or_default();
            for path in rule.http.iter().flat_map(|http| &http.paths) {
                list.extend(self.rule(source, path));
            }
        }
        if let Some(backend) = &spec.default_backend {
            let any = HTTPIngressPath {
                backend: backend.clone(),
                path: None,
                path_type: "Prefix".to_owned(),
            };
            if paths.is_empty() {
                paths.insert(String::new(), Vec::new());
            }
            for list in paths.values_mut() {
                list.extend(self.rule(source, &any));
            }
        }
        let many = paths.len() > 1;
        for (n, (host, rules)) in
            paths.into_iter().filter(|(_, rules)| !rules.is_empty()).enumerate()
        {
            let name =
                if many { format!("{}-{n}", source.id.name) } else { source.id.name.clone() };
            self.route(source, &name, &host, rules);
        }
    }

    /// Adds the routes of a host: one for its rules, and one that redirects to HTTPS.
    fn route(&mut self, source: &Source, name: &str, host: &str, rules: Vec<Value>) {
        let namespace = &source.id.namespace;
        let secured = self.hosts.get(namespace).and_then(|hosts| hosts.secured.get(host)).cloned();
        if let Some((None, _)) = secured {
            let text = format!(
                "no Secret is named: its listener asks for a certificate ({ACME_OPTION}), which needs --acme-issuer"
            );
            self.findings.add(&source.id, Severity::Warning, "NoCertificate", host, &text);
        }
        let secured = secured.map(|(_, name)| name);
        let mut put = |name: &str, sections: &[&str], rules: Vec<Value>| {
            let parents: Vec<Value> = sections
                .iter()
                .map(|section| json!({ "name": NAME, "sectionName": section }))
                .collect();
            let mut spec = json!({ "parentRefs": parents, "rules": rules });
            if !host.is_empty() {
                spec["hostnames"] = json!([host]);
            }
            let mut metadata = json!({ "name": name, "namespace": namespace });
            if let Some(born) = &source.ingress.metadata.creation_timestamp {
                // Keeps the order of age of the Ingresses, if the printed manifests are read again.
                metadata["creationTimestamp"] = serde_json::to_value(born).unwrap_or_default();
            }
            self.routes.push(json!({ "apiVersion": format!("{GROUP}/v1"), "kind": "HTTPRoute", "metadata": metadata, "spec": spec }));
        };
        match secured {
            Some(section) if source.options.ssl_redirect => {
                put(name, &[section.as_str()], rules);
                let filter = json!({ "type": "RequestRedirect", "requestRedirect": { "scheme": "https", "statusCode": 308 } });
                put(&format!("{name}-redirect"), &["http"], vec![json!({ "filters": [filter] })]);
            }
            Some(section) => put(name, &["http", section.as_str()], rules),
            None => put(name, &["http"], rules),
        }
    }

    /// The rule of a path. `None` if it has no counterpart, which a finding reports.
    fn rule(&mut self, source: &Source, path: &HTTPIngressPath) -> Option<Value> {
        let (id, options) = (&source.id, &source.options);
        let text = path.path.clone().unwrap_or_else(|| "/".to_owned());
        if !values::is_path(&text) {
            let what = "a path begins with a slash and has no control characters; it is left out";
            self.say(id, Severity::Error, &text, what);
            return None;
        }
        let mut filters = Vec::new();
        let (kind, value) = self.path(id, options, &text, &path.path_type, &mut filters)?;
        if let Some(host) = &options.vhost {
            if !values::is_host(host, false) {
                self.say(
                    id,
                    Severity::Error,
                    "upstream-vhost",
                    "it has variables; the path is left out",
                );
                return None;
            }
            filters.push(json!({ "type": "URLRewrite", "urlRewrite": { "hostname": host } }));
        }
        if let Some((code, to)) = &options.redirect {
            filters = vec![self.redirect(id, *code, to)?];
        }
        filters.extend(cors(source));
        let mut rule = json!({ "matches": [{ "path": { "type": kind, "value": value } }], "filters": merged(filters) });
        if options.redirect.is_none() {
            rule["backendRefs"] = json!([self.backend(id, &path.backend)?]);
        }
        if let Some(affinity) = &options.affinity {
            let name = affinity.words.get(1).cloned().unwrap_or_else(|| "INGRESSCOOKIE".to_owned());
            rule["sessionPersistence"] = json!({ "type": "Cookie", "sessionName": name });
        }
        Some(rule)
    }

    /// The type and value of a path's match. A rewrite becomes a filter.
    fn path(
        &mut self,
        id: &ObjectId,
        options: &Options,
        text: &str,
        kind: &str,
        filters: &mut Vec<Value>,
    ) -> Option<(&'static str, String)> {
        let rewrite = |filters: &mut Vec<Value>, kind: &str, key: &str, to: &str| {
            filters.push(json!({ "type": "URLRewrite", "urlRewrite": { "path": { "type": kind, (key): to } } }));
        };
        if let Some(target) = &options.rewrite {
            let stem = text.strip_suffix("(/|$)(.*)").filter(|stem| values::of(stem, "/-._~"));
            if let (Some(stem), Some(to)) =
                (stem, target.strip_suffix("$2").filter(|to| !to.contains('$')))
            {
                rewrite(filters, "ReplacePrefixMatch", "replacePrefixMatch", to);
                let stem = if stem.is_empty() { "/" } else { stem };
                return Some(("PathPrefix", stem.to_owned()));
            }
            if target.contains('$') {
                self.say(
                    id,
                    Severity::Error,
                    "rewrite-target",
                    "it takes parts of the path; the path is left out",
                );
                return None;
            }
            rewrite(filters, "ReplaceFullPath", "replaceFullPath", target);
            return Some(("RegularExpression", format!("(?i){text}.*")));
        }
        if options.regex {
            return Some(("RegularExpression", format!("(?i){text}.*")));
        }
        match kind {
            "Exact" => Some(("Exact", text.to_owned())),
            "Prefix" => Some(("PathPrefix", text.to_owned())),
            _ => {
                if !text.ends_with('/') {
                    self.say(
                        id,
                        Severity::Warning,
                        text,
                        "a prefix ends where a part of the path ends in Gateway API",
                    );
                }
                Some(("PathPrefix", text.to_owned()))
            }
        }
    }

    fn redirect(&mut self, id: &ObjectId, code: u64, to: &str) -> Option<Value> {
        let url = values::url(to, true).ok().filter(|url| !url.rest.contains(['$', '?']));
        let Some(url) = url.filter(|_| matches!(code, 301 | 302 | 303 | 307 | 308)) else {
            self.say(
                id,
                Severity::Error,
                "redirect",
                "its target or status has no counterpart; the path is left out",
            );
            return None;
        };
        let path = if url.rest.is_empty() { "/" } else { url.rest.as_str() };
        let port = url.port.unwrap_or(if url.scheme == "https" { 443 } else { 80 });
        self.say(id, Severity::Note, "redirect", "the query of a request stays in Gateway API");
        Some(
            json!({ "type": "RequestRedirect", "requestRedirect": { "scheme": url.scheme, "hostname": url.host,
            "port": port, "statusCode": code, "path": { "type": "ReplaceFullPath", "replaceFullPath": path } } }),
        )
    }

    fn backend(&mut self, id: &ObjectId, backend: &IngressBackend) -> Option<Value> {
        let Some(service) = &backend.service else {
            self.say(
                id,
                Severity::Error,
                "resource",
                "only Services can be servers behind; the path is left out",
            );
            return None;
        };
        let port = service.port.as_ref();
        let number = port.and_then(|port| port.number).or_else(|| {
            let name = port.and_then(|port| port.name.as_deref())?;
            let mut all = self.snapshot.services.iter();
            let found = all.find(|one| {
                one.metadata.name.as_ref() == Some(&service.name)
                    && one.metadata.namespace.as_deref().unwrap_or("default") == id.namespace
            })?;
            let ports = found.spec.as_ref()?.ports.as_deref()?;
            ports.iter().find(|port| port.name.as_deref() == Some(name)).map(|port| port.port)
        });
        let Some(number) = number else {
            self.say(
                id,
                Severity::Error,
                &service.name,
                "the number of its port is not known; the path is left out",
            );
            return None;
        };
        Some(json!({ "name": service.name, "port": number }))
    }
}

/// The CORS filter.
fn cors(source: &Source) -> Option<Value> {
    let cors = source.options.cors.as_ref()?;
    let annotations = source.ingress.metadata.annotations.as_ref();
    let origins = annotations.and_then(|all| all.get(&format!("{PREFIX}cors-allow-origin")));
    let words = |text: &str| -> Vec<String> {
        text.split(',').map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect()
    };
    let origins = match (&cors.origins, origins) {
        (Some(_), Some(text)) => {
            words(text).into_iter().filter(|origin| is_origin(origin)).collect()
        }
        _ => vec!["*".to_owned()],
    };
    let mut filter = json!({ "allowOrigins": origins });
    for (name, value) in &cors.headers {
        match *name {
            "Access-Control-Allow-Methods" => filter["allowMethods"] = words(value).into(),
            "Access-Control-Allow-Headers" => filter["allowHeaders"] = words(value).into(),
            "Access-Control-Expose-Headers" => filter["exposeHeaders"] = words(value).into(),
            "Access-Control-Allow-Credentials" => {
                filter["allowCredentials"] = (value == "true").into()
            }
            "Access-Control-Max-Age" => filter["maxAge"] = value.parse::<i32>().unwrap_or(5).into(),
            _ => {}
        }
    }
    Some(json!({ "type": "CORS", "cors": filter }))
}

/// Merges filters of the same type, since a rule may have one of each: two rewrites become one.
fn merged(filters: Vec<Value>) -> Vec<Value> {
    let mut list: Vec<Value> = Vec::new();
    let mut seen = BTreeSet::new();
    for filter in filters {
        let kind = filter["type"].as_str().unwrap_or_default().to_owned();
        if seen.insert(kind.clone()) {
            list.push(filter);
            continue;
        }
        let before = list.iter_mut().find(|one| one["type"] == kind.as_str());
        if let (Some(before), Some(more)) = (before, filter["urlRewrite"].as_object()) {
            for (key, value) in more {
                before["urlRewrite"][key.as_str()] = value.clone();
            }
        }
    }
    list
}
