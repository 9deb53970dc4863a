//! Services to groups of servers.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Service, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use weir_conf::Directive;

use super::{Source, Work, digest, line};
use crate::annotations::values;
use crate::report::{ObjectId, Severity};

/// The port of a Service, by name or number; empty: its first.
pub(super) type PortName = String;

impl Work<'_> {
    /// The name of the group for a Service of a namespace; `None`: it has no servers now.
    pub(super) fn group(
        &mut self,
        id: &ObjectId,
        source: Option<&Source<'_>>,
        namespace: &str,
        service: &str,
        port: &PortName,
    ) -> Option<String> {
        let about = format!("service {service}:{port}");
        let found = self.snapshot.services.iter().find(|s| {
            s.metadata.name.as_deref() == Some(service)
                && s.metadata.namespace.as_deref().unwrap_or("default") == namespace
        });
        let Some(found) = found.filter(|_| values::is_label(service)) else {
            self.say(
                id,
                Severity::Error,
                "NoService",
                &about,
                "the namespace has no such Service: answers are 503",
            );
            return None;
        };
        let spec = found.spec.as_ref();
        if spec.and_then(|spec| spec.type_.as_deref()) == Some("ExternalName") {
            self.say(
                id,
                Severity::Error,
                "ExternalName",
                &about,
                "external names are not built: answers are 503",
            );
            return None;
        }
        let ports = spec.and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
        let wanted = ports.iter().find(|p| {
            port.is_empty() || p.name.as_deref() == Some(port) || p.port.to_string() == *port
        });
        let Some(wanted) = wanted else {
            self.say(
                id,
                Severity::Error,
                "NoPort",
                &about,
                "the Service has no such port: answers are 503",
            );
            return None;
        };
        let whole = source.is_some_and(|source| source.options.service_upstream);
        let addresses = if whole {
            self.cluster_address(found, wanted)
        } else {
            self.addresses(namespace, service, wanted)
        };
        if addresses.is_empty() {
            self.say(
                id,
                Severity::Warning,
                "NoEndpoints",
                &about,
                "no pod is ready: answers are 503",
            );
            return None;
        }
        let (name, extra) = named(source, namespace, service, wanted, whole);
        // 680 bytes a server; the rest is room for the zone itself.
        let size = (64 + addresses.len()) * 1024;
        let mut block = vec![line("zone", [name.as_str(), &size.to_string()])];
        block.extend(extra);
        block.extend(addresses.iter().map(|address| line("server", [address.as_str()])));
        block.push(line("keepalive", ["320"]));
        self.shared.insert(
            format!("upstream {name}"),
            vec![line("upstream", [name.as_str()]).with_block(block)],
        );
        Some(name)
    }

    fn cluster_address(&self, service: &Service, port: &ServicePort) -> BTreeSet<String> {
        let ip = service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref());
        ip.and_then(|ip| self.address(ip, port.port)).into_iter().collect()
    }

    /// The addresses of a Service's ready pods.
    pub(crate) fn addresses(
        &self,
        namespace: &str,
        service: &str,
        port: &ServicePort,
    ) -> BTreeSet<String> {
        let mut out = BTreeSet::new();
        for slice in &self.snapshot.slices {
            let meta = &slice.metadata;
            let labels = meta.labels.as_ref();
            let of = labels.and_then(|labels| labels.get("kubernetes.io/service-name"));
            if meta.namespace.as_deref().unwrap_or("default") != namespace
                || of.map(String::as_str) != Some(service)
            {
                continue;
            }
            let ports = slice.ports.as_deref().unwrap_or_default();
            let number = ports.iter().find(|p| {
                p.name.as_deref().unwrap_or_default() == port.name.as_deref().unwrap_or_default()
            });
            let number = number.and_then(|p| p.port).or(match &port.target_port {
                Some(IntOrString::Int(number)) if ports.is_empty() => Some(*number),
                _ => None,
            });
            let Some(number) = number else { continue };
            for endpoint in &slice.endpoints {
                let ready = endpoint.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true);
                if ready {
                    out.extend(endpoint.addresses.iter().filter_map(|ip| self.address(ip, number)));
                }
            }
        }
        out
    }

    /// An address for `server`, if a server behind may have it.
    fn address(&self, ip: &str, port: i32) -> Option<String> {
        let port = u16::try_from(port).ok().filter(|port| *port > 0)?;
        let ip: IpAddr = ip.parse().ok()?;
        (self.settings.loopback || values::is_far(ip)).then(|| match ip {
            IpAddr::V4(ip) => format!("{ip}:{port}"),
            IpAddr::V6(ip) => format!("[{ip}]:{port}"),
        })
    }
}

/// The group's name, and its own directives. Settings of an Ingress make a group of its own, so that they reach no
/// other Ingress. Names of Kubernetes have no underscore, so that the parts of a name cannot run into each other.
fn named(
    source: Option<&Source<'_>>,
    namespace: &str,
    service: &str,
    port: &ServicePort,
    whole: bool,
) -> (String, Vec<Directive>) {
    let base = format!("{namespace}_{service}_{}", port.port);
    let mut extra: Vec<Directive> = Vec::new();
    if let Some(source) = source {
        let options = &source.options;
        extra.extend(options.balance.as_ref().and_then(|words| {
            let (name, rest) = words.split_first()?;
            Some(line(name, rest.iter().map(String::as_str)))
        }));
        extra.extend(
            options.affinity.as_ref().map(|a| line("sticky", a.words.iter().map(String::as_str))),
        );
    }
    match source {
        Some(source) if !extra.is_empty() => {
            (format!("{base}_{}", digest(source.id.to_string().as_bytes())), extra)
        }
        _ if whole => (format!("{base}_service"), extra),
        _ => (base, extra),
    }
}
