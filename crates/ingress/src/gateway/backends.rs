//! Servers behind that routes name: groups of `upstream`, or why there is none.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ServicePort;
use weir_conf::Directive;

use super::grants::{Referrer, Refused};
use super::objects::Reference;
use super::policies::{BackendTls, Policies};
use crate::report::ObjectId;
use crate::translate::{ServerGroup, ServerWords, Work, line, room, zone};

/// How servers behind are spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speech {
    Http1,
    Http2,
}

/// A port of a Service that a route may use.
pub(super) struct Backend {
    pub(super) speech: Speech,
    /// TLS with a check; `Some(None)`: it cannot be checked.
    pub(super) tls: Option<Option<BackendTls>>,
    /// Namespace, Service, port.
    base: String,
    pods: ServerGroup,
    addresses: BTreeSet<String>,
}

impl Backend {
    /// Whether a pod is ready.
    pub(super) fn has_servers(&self) -> bool {
        !self.addresses.is_empty()
    }
}

/// Which block a group stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Block {
    Http,
    Stream,
}

/// How a rule uses a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    /// Attempts for a request.
    pub(super) times: usize,
    /// The rule says how long a server may take: one that takes longer is as good as before for others.
    pub(super) limited: bool,
}

impl Default for Use {
    fn default() -> Use {
        Use { times: 1, limited: false }
    }
}

impl Work<'_> {
    /// The servers that a reference leads to.
    pub(super) fn backend(
        &self,
        policies: &mut Policies,
        gateways: &[ObjectId],
        from: Referrer<'_>,
        to: &Reference,
    ) -> Result<Backend, Refused> {
        let (namespace, name, _) = self.referred(from, to, &["Service"], "InvalidKind")?;
        let missing = |text: &str| {
            Refused::new("BackendNotFound", format!("Service {namespace}/{name}: {text}"))
        };
        let service = self.service_of(&namespace, &name).ok_or_else(|| missing("there is none"))?;
        let spec = service.spec.as_ref();
        if spec.and_then(|spec| spec.type_.as_deref()) == Some("ExternalName") {
            return Err(missing("external names are not supported"));
        }
        let number = to.port.ok_or_else(|| missing("the reference needs a port"))?;
        let ports = spec.and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
        let datagrams = from.kind == "UDPRoute";
        let udp = |port: &&ServicePort| (port.protocol.as_deref() == Some("UDP")) == datagrams;
        let port = ports.iter().filter(udp).find(|port| port.port == number);
        let port = port.ok_or_else(|| missing("it has no such port"))?;
        let policy =
            policies.of(gateways, &namespace, &name, port.name.as_deref().unwrap_or_default());
        let tls = policy.map(|policy| policy.tls.clone());
        let speech = match port.app_protocol.as_deref() {
            Some("kubernetes.io/h2c" | "grpc") => Speech::Http2,
            Some("kubernetes.io/wss" | "https") if tls.is_none() && from.kind == "HTTPRoute" => {
                let text = format!("Service {namespace}/{name}: TLS needs a BackendTLSPolicy");
                return Err(Refused::new("UnsupportedProtocol", text));
            }
            _ => Speech::Http1,
        };
        let pods = ServerGroup::new(&namespace, &name, port);
        let addresses = self.servers_of(&pods);
        Ok(Backend { speech, tls, base: format!("{namespace}_{name}_{number}"), pods, addresses })
    }

    /// The group of these servers; `None`: no pod is ready. Each server stands `times` times, so that as many attempts
    /// can be made.
    pub(super) fn group_of(
        &mut self,
        backend: &Backend,
        block: Block,
        (suffix, extra): (&str, Vec<Directive>),
        Use { times, limited }: Use,
    ) -> Option<String> {
        let kind = if block == Block::Http { "" } else { "stream__" };
        let mut name = format!("{kind}{}", backend.base);
        if times > 1 {
            name.push_str(&format!("_{times}"));
        }
        if limited {
            name.push_str("_limited");
        }
        if !suffix.is_empty() {
            name.push_str(&format!("_{suffix}"));
        }
        let servers = backend.addresses.len() * times;
        // A server that is to be asked again stays in use.
        let again = times > 1 || limited;
        let words = if again { ServerWords::NeverDown } else { ServerWords::Nothing };
        let pods = ServerGroup { times, words, ..backend.pods.clone() };
        let lines = self.server_lines(&name, pods, &backend.addresses);
        if backend.addresses.is_empty() {
            return None;
        }
        let mut list = vec![match block {
            Block::Http => zone(&name, servers),
            // Another zone needs new workers, so it has room for more. 680 bytes a server.
            Block::Stream => line("zone", [name.as_str(), &(room(servers) * 1024).to_string()]),
        }];
        list.extend(extra);
        list.extend(lines);
        list.extend((block == Block::Http).then(|| line("keepalive", ["320"])));
        let group = vec![line("upstream", [name.as_str()]).with_block(list)];
        let shared = match block {
            Block::Http => &mut self.shared,
            Block::Stream => &mut self.streams,
        };
        shared.insert(format!("upstream {name}"), group);
        Some(name)
    }
}
