//! Ports of TCP and UDP that the administrator maps to Services, in ConfigMaps as for
//! ingress-nginx.

use std::collections::BTreeSet;

use weir_conf::Directive;

use super::backend::named;
use super::keys::session_directives;
use super::lines::line;
use super::servers::{ServerGroup, room};
use super::work::{Servers, Work};
use crate::report::{ObjectId, Severity};
use crate::settings::Settings;

/// A key and its value: `PORT: NAMESPACE/SERVICE:PORT[:PROXY[:PROXY]]`.
struct Session<'a> {
    port: u16,
    namespace: &'a str,
    service: &'a str,
    of_service: String,
    /// Whether the PROXY protocol is read from clients, and sent to upstreams.
    read: bool,
    send: bool,
}

impl Work<'_> {
    /// The servers of all mapped ports.
    pub(super) fn sessions_of(&mut self) -> Servers {
        let mut streams = Vec::new();
        for (map, udp) in self.settings.sessions.clone().into_iter().zip([false, true]) {
            let Some((namespace, name)) = map else { continue };
            let id = ObjectId { kind: "ConfigMap", namespace, name };
            let Some(map) = self.index.config_map(&id.namespace, &id.name) else {
                let why = "there is no such ConfigMap; none of its ports is served";
                self.say(&id, Severity::Warning, "NoConfigMap", "data", why);
                continue;
            };
            let mut taken = self.own_ports(udp);
            for (key, value) in map.data.iter().flatten() {
                let read = session(key, value).and_then(|s| match taken.insert(s.port) {
                    true => Ok(s),
                    false => Err("weir listens on this port already".to_owned()),
                });
                match read.and_then(|s| self.session(&s, udp)) {
                    Ok(server) => streams.push(server),
                    Err(why) => {
                        let why = format!("{why}; the port is not served");
                        self.say(&id, Severity::Error, "InvalidKey", key, &why);
                    }
                }
            }
        }
        Servers { streams, ..Servers::default() }
    }

    /// The ports that are not free for Services. weir would refuse a configuration that listens on
    /// one of them twice.
    fn own_ports(&self, udp: bool) -> BTreeSet<u16> {
        let Settings { http, https, closed_ports, .. } = self.settings;
        let port = |word: &String| word.rsplit(':').next().and_then(|port| port.parse().ok());
        if udp {
            return https.iter().filter(|_| self.base.http3).filter_map(port).collect();
        }
        http.iter().chain(https).filter_map(port).chain(closed_ports.iter().copied()).collect()
    }

    /// Makes the `stream` group for a port of a Service and returns its name.
    pub(super) fn stream_group(
        &mut self,
        (namespace, service_name, of_service): (&str, &str, &str),
        udp: bool,
    ) -> Result<String, String> {
        let service =
            self.index.service(namespace, service_name).ok_or("there is no such Service")?;
        let spec = service.spec.as_ref();
        let end = if udp { "_udp" } else { "" };
        let group = format!("{namespace}_{service_name}_{of_service}{end}");
        let zone = format!("stream_{group}");
        let mut block = Vec::new();
        let mut room_for = room(1);
        if spec.and_then(|spec| spec.type_.as_deref()) == Some("ExternalName") {
            let name = spec.and_then(|spec| spec.external_name.as_deref()).unwrap_or_default();
            let (_, made) =
                self.external(None, namespace, service_name, name, &of_service.to_owned())?;
            block.extend(made.block().iter().filter(|d| d.name.is("server")).cloned());
        } else {
            let ports = spec.and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
            let port = named(ports, of_service, udp).ok_or("the Service has no such port")?;
            let pods = ServerGroup::new(namespace, service_name, port);
            let servers = self.servers_of(&pods);
            room_for = room(servers.len());
            block.extend(self.server_lines(&zone, pods, &servers));
            if servers.is_empty() {
                return Err("no pod of the Service is ready".to_owned());
            }
        }
        // A server takes 680 bytes.
        block.push(line("zone", [zone.as_str(), &(room_for * 1024).to_string()]));
        let made = line("upstream", [group.as_str()]).with_block(block);
        self.streams.insert(format!("session {group}"), vec![made]);
        Ok(group)
    }

    fn session(&mut self, s: &Session<'_>, udp: bool) -> Result<Directive, String> {
        let group = self.stream_group((s.namespace, s.service, &s.of_service), udp)?;
        let listen = |address: String| {
            let mut words = vec![address.as_str()];
            words.extend(udp.then_some("udp"));
            words.extend((s.read && !udp).then_some("proxy_protocol"));
            line("listen", words)
        };
        let mut list = vec![listen(s.port.to_string()), listen(format!("[::]:{}", s.port))];
        if s.read {
            let networks = self.settings.list("proxy-real-ip-cidr").collect::<Vec<_>>();
            let networks = if networks.is_empty() { vec!["0.0.0.0/0", "::/0"] } else { networks };
            list.extend(networks.iter().map(|network| line("set_real_ip_from", [*network])));
        }
        list.extend(s.send.then(|| line("proxy_protocol", ["on"])));
        list.extend(session_directives(self.settings, udp));
        list.push(line("proxy_pass", [group.as_str()]));
        Ok(line("server", []).with_block(list))
    }
}

fn session<'a>(key: &str, value: &'a str) -> Result<Session<'a>, String> {
    let wrong = || "it must be PORT: NAMESPACE/SERVICE:PORT".to_owned();
    let port = key.trim().parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?;
    let mut parts = value.trim().split(':');
    let (namespace, service) =
        parts.next().and_then(|name| name.split_once('/')).ok_or_else(wrong)?;
    let of_service = parts.next().filter(|port| !port.is_empty()).ok_or_else(wrong)?.to_owned();
    let mut proxy = || parts.next().is_some_and(|word| word == "PROXY");
    let (read, send) = (proxy(), proxy());
    Ok(Session { port, namespace, service, of_service, read, send })
}
