//! The backends of routes: upstream groups, or the reason why there is none.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ServicePort;
use weir_conf::Directive;

use super::grants::{Referrer, Refused};
use super::objects::Reference;
use super::policies::{BackendTls, Policies};
use crate::report::ObjectId;
use crate::translate::{ServerGroup, ServerWords, Work, line, room, zone};

/// The protocol of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BackendProtocol {
    Http1,
    Http2,
}

/// A port of a Service, as a backend.
pub(super) struct Backend {
    pub(super) protocol: BackendProtocol,
    /// TLS by a BackendTLSPolicy. `Some(None)` if the policy is not valid, so that the backend
    /// cannot be verified.
    pub(super) tls: Option<Option<BackendTls>>,
    /// Namespace, Service and port, joined for names of groups.
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

/// The block that a group is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Block {
    Http,
    Stream,
}

/// How a rule uses a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    /// The most attempts for a request.
    pub(super) times: usize,
    /// Whether the rule has timeouts. A timeout of this rule must not mark a server as failed for
    /// others.
    pub(super) limited: bool,
}

impl Default for Use {
    fn default() -> Use {
        Use { times: 1, limited: false }
    }
}

impl Work<'_> {
    /// The backend that a reference names.
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
        let protocol = match port.app_protocol.as_deref() {
            Some("kubernetes.io/h2c" | "grpc") => BackendProtocol::Http2,
            Some("kubernetes.io/wss" | "https") if tls.is_none() && from.kind == "HTTPRoute" => {
                let text = format!("Service {namespace}/{name}: TLS needs a BackendTLSPolicy");
                return Err(Refused::new("UnsupportedProtocol", text));
            }
            _ => BackendProtocol::Http1,
        };
        let pods = ServerGroup::new(&namespace, &name, port);
        let addresses = self.servers_of(&pods);
        Ok(Backend { protocol, tls, base: format!("{namespace}_{name}_{number}"), pods, addresses })
    }

    /// Makes the group of a backend's pods and returns its name. `None` if no pod is ready. Each
    /// server is listed `times` times, so that it can get as many attempts.
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
        // Retries need servers that stay in use after a failure.
        let again = times > 1 || limited;
        let words = if again { ServerWords::NeverDown } else { ServerWords::Nothing };
        let pods = ServerGroup { times, words, ..backend.pods.clone() };
        let lines = self.server_lines(&name, pods, &backend.addresses);
        if backend.addresses.is_empty() {
            return None;
        }
        let mut list = vec![match block {
            Block::Http => zone(&name, servers),
            // A new zone needs new workers, so it has spare room. A server takes 680 bytes.
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
