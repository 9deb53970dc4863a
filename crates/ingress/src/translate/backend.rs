//! Makes upstream groups of Services.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{ConfigMap, Service, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use weir_conf::Directive;

use super::lines::{digest, line};
use super::servers::{DIRECTORY, ServerGroup, ServerWords, address};
use super::sources::Source;
use super::work::Work;
use crate::annotations::values;
use crate::report::{ObjectId, Severity};

/// A port of a Service, by name or number. If empty, the first port.
pub(super) type PortName = String;

/// The port of a Service with this name or number. A Service may have a number once for each
/// protocol, so a port of the wanted one comes first.
pub(super) fn named<'p>(
    ports: &'p [ServicePort],
    port: &str,
    udp: bool,
) -> Option<&'p ServicePort> {
    let is = |p: &&ServicePort| {
        port.is_empty() || p.name.as_deref() == Some(port) || p.port.to_string() == port
    };
    let is_other = |p: &&ServicePort| (p.protocol.as_deref() == Some("UDP")) != udp;
    ports.iter().filter(is).min_by_key(is_other)
}

/// The port of a Service that leads to this port of its pods.
fn targeted<'p>(ports: &'p [ServicePort], port: &PortName) -> Option<&'p ServicePort> {
    ports.iter().find(|p| match &p.target_port {
        Some(IntOrString::Int(number)) => number.to_string() == *port,
        Some(IntOrString::String(name)) => name == port,
        None => false,
    })
}

/// The port of a server outside of the cluster for a port of its Service.
fn target(port: &ServicePort) -> i32 {
    match port.target_port {
        Some(IntOrString::Int(number)) if number > 0 => number,
        _ => port.port,
    }
}

impl Work<'_> {
    /// Makes the group for a Service and returns its name. `None` if it has no servers now, which a
    /// finding reports.
    pub(super) fn group(
        &mut self,
        id: &ObjectId,
        source: Option<&Source>,
        namespace: &str,
        service: &str,
        port: &PortName,
    ) -> Option<String> {
        let about = format!("service {service}:{port}");
        let found = self.index.service(namespace, service);
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
            let name = spec.and_then(|spec| spec.external_name.as_deref()).unwrap_or_default();
            return match self.external(source, namespace, service, name, port) {
                Ok((group, made)) => {
                    self.share(id, format!("upstream {group}"), vec![made]);
                    Some(group)
                }
                Err(why) => {
                    let message = format!("{why}: answers are 503");
                    self.say(id, Severity::Error, "ExternalName", &about, &message);
                    None
                }
            };
        }
        let ports = spec.and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
        let Some(wanted) = named(ports, port, false).or_else(|| targeted(ports, port)) else {
            self.say(
                id,
                Severity::Error,
                "NoPort",
                &about,
                "the Service has no such port: answers are 503",
            );
            return None;
        };
        if named(ports, port, false).is_none() {
            let what = "this is the port of the pods: ingress-nginx takes it, others may not";
            self.say(id, Severity::Note, "TargetPort", &about, what);
        }
        let mut group = ServerGroup::new(namespace, service, wanted);
        let canary = source.and_then(|s| s.options.affinity.as_ref()).is_some_and(|a| a.canary);
        if canary {
            group.words = ServerWords::CanaryRoute;
        }
        let asks_service = source.is_some_and(|source| source.options.service_upstream);
        let own = asks_service.then(|| self.cluster_address(found, wanted));
        let own = own.filter(|own| !own.is_empty());
        let whole = own.is_some();
        if asks_service && !whole {
            let what = "the Service has no address of its own, so requests go to its pods";
            self.say(id, Severity::Note, "NoClusterIP", &about, what);
        }
        let addresses = own.unwrap_or_else(|| self.servers_of(&group));
        let (name, extra) = group_name(source, namespace, service, wanted.port, whole);
        let mut block = vec![super::zones::zone(&name, addresses.len())];
        block.extend(extra);
        block.extend(match whole {
            true => group.lines(&addresses),
            false => self.server_lines(&name, group, &addresses),
        });
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
        block.extend(self.keepalive_lines());
        let group = line("upstream", [name.as_str()]).with_block(block);
        self.share(id, format!("upstream {name}"), vec![group]);
        Some(name)
    }

    /// The addresses of a group's ready pods.
    pub(crate) fn servers_of(&self, group: &ServerGroup) -> BTreeSet<String> {
        let slices = self.index.slices(&group.namespace, &group.service);
        group.addresses(slices, self.settings.pods())
    }

    /// The lines of a group's servers, or the `servers_file` of the group `name`. A group without
    /// servers has no line, but it is registered, so that its first pod is noticed.
    pub(crate) fn server_lines(
        &mut self,
        name: &str,
        mut group: ServerGroup,
        addresses: &BTreeSet<String>,
    ) -> Vec<Directive> {
        if !self.settings.servers_in_files {
            return group.lines(addresses);
        }
        let path = self.settings.state.join(DIRECTORY).join(name);
        group.room = group.room_for(addresses);
        self.groups.insert(name.to_owned(), group);
        match addresses.is_empty() {
            true => Vec::new(),
            false => vec![line("servers_file", [path.display().to_string().as_str()])],
        }
    }

    /// The group of a Service of the type ExternalName.
    pub(super) fn external(
        &self,
        source: Option<&Source>,
        namespace: &str,
        service: &str,
        name: &str,
        port: &PortName,
    ) -> Result<(String, Directive), String> {
        if self.settings.no_external_names {
            return Err("the administrator takes no names outside of the cluster".to_owned());
        }
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let declared = self.index.service(namespace, service);
        let declared = declared.and_then(|s| s.spec.as_ref()).and_then(|s| s.ports.as_deref());
        let asked = port.parse::<u16>().ok();
        let declared = declared.unwrap_or_default().iter().find(|p| match asked {
            Some(number) => p.port == i32::from(number),
            None => p.name.as_deref() == Some(port),
        });
        let number = match (declared.map(target), asked) {
            (Some(number), _) => u16::try_from(number).ok(),
            (None, Some(number)) => Some(number),
            (None, None) => return Err("the path names no port as a number".to_owned()),
        };
        let number = number.filter(|number| *number > 0).ok_or("its port is no port")?;
        let near = values::url(&format!("http://{name}"), self.settings.loopback).err();
        if let Some(why) = near {
            return Err(format!("its name \"{name}\" cannot be a server: {why}"));
        }
        if name.split('.').any(|label| label == "svc") && !self.settings.shared_hosts {
            return Err("its name is a Service, maybe of another namespace".to_owned());
        }
        let literal = name.parse::<IpAddr>().is_ok();
        if !literal && !self.settings.resolves() {
            return Err("no resolver is set".to_owned());
        }
        let (group, extra) = group_name(source, namespace, service, i32::from(number), false);
        let group = format!("{group}_external");
        let address = format!("{}:{number}", self.settings.whole_name(&name));
        let mut words = vec![address.as_str()];
        words.extend((!literal).then_some("resolve"));
        let mut block = vec![super::zones::zone(&group, 1)];
        block.extend(extra);
        block.push(line("server", words));
        block.extend(self.keepalive_lines());
        let made = line("upstream", [group.as_str()]).with_block(block);
        Ok((group, made))
    }

    /// The directives that keep connections to upstream servers alive.
    fn keepalive_lines(&self) -> Vec<Directive> {
        let value = |key: &str| {
            let text = self.settings.defaults.get(key).map(|text| text.trim());
            text.filter(|text| !text.is_empty() && values::of(text, ""))
        };
        let connections = value("upstream-keepalive-connections").unwrap_or("320");
        if connections == "0" {
            return Vec::new();
        }
        let mut list = vec![line("keepalive", [connections])];
        for (key, name, unit) in [
            ("upstream-keepalive-requests", "keepalive_requests", ""),
            ("upstream-keepalive-time", "keepalive_time", ""),
            ("upstream-keepalive-timeout", "keepalive_timeout", "s"),
        ] {
            let word = value(key).map(|v| match v.bytes().all(|b| b.is_ascii_digit()) {
                true => format!("{v}{unit}"),
                false => v.to_owned(),
            });
            list.extend(word.map(|word| line(name, [word.as_str()])));
        }
        list
    }

    /// A Service by namespace and name.
    pub(crate) fn service_of(&self, namespace: &str, name: &str) -> Option<&Service> {
        self.index.service(namespace, name)
    }

    /// A ConfigMap by namespace and name.
    pub(crate) fn config_map_of(&self, namespace: &str, name: &str) -> Option<&ConfigMap> {
        self.index.config_map(namespace, name)
    }

    fn cluster_address(&self, service: &Service, port: &ServicePort) -> BTreeSet<String> {
        let ip = service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref());
        ip.and_then(|ip| address(ip, port.port, self.settings.loopback)).into_iter().collect()
    }
}

/// The name of a group, and its directives of balancing. An Ingress with such directives has a
/// group of its own, so that they do not affect other Ingresses. Names in Kubernetes have no
/// underscore, so the parts of the name stay apart.
fn group_name(
    source: Option<&Source>,
    namespace: &str,
    service: &str,
    port: i32,
    whole: bool,
) -> (String, Vec<Directive>) {
    let base = format!("{namespace}_{service}_{port}");
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
            // Cookies for the path of another rule need another group.
            let words = source.options.affinity.as_ref().map(|a| a.words.join(" "));
            let of =
                format!("{}{}", source.id, words.map(|w| format!("\n{w}")).unwrap_or_default());
            (format!("{base}_{}", digest(of.as_bytes())), extra)
        }
        _ if whole => (format!("{base}_service"), extra),
        _ => (base, extra),
    }
}
