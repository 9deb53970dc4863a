//! Hosts whose upstream terminates TLS (`ssl-passthrough`). The ports of TLS belong to `stream`,
//! which reads the server name from the handshake. Connections for such a host go to its Service,
//! all others to the servers of `http`.

use weir_conf::Directive;

use super::hosts::Host;
use super::lines::line;
use super::rules::root;
use super::work::{Base, Work};
use crate::report::Severity;
use crate::settings::Settings;

/// The group without an available server, which closes connections at once.
const CLOSED: &str = "passthrough__closed";

/// The socket at which the servers of `http` then accept TLS.
pub(super) fn inner_socket(settings: &Settings) -> String {
    format!("unix:{}", settings.state.join("ingress-https.sock").display())
}

/// Whether it is the name of one host. A wildcard would take connections for names that have a
/// server of their own in `http`.
fn is_one(name: &str) -> bool {
    !name.is_empty() && !name.starts_with("*.")
}

/// Whether names are read before TLS. With the PROXY protocol they are not: its header comes before
/// the handshake, and only `http` reads it.
pub(super) fn is_on(base: &Base) -> bool {
    base.settings.passthrough && !base.proxy_protocol && !base.settings.https.is_empty()
}

impl Work<'_> {
    /// The `stream` server of a host at the ports of TLS, if it gets its connections passed
    /// through. Findings report hosts that ask for it in vain.
    pub(super) fn passthrough_servers(&mut self, host: &Host) -> Vec<Directive> {
        let on = is_on(self.base);
        let mut servers = Vec::new();
        let asking = host.sources.iter().filter(|source| source.options.passthrough);
        for source in asking {
            let why = match on {
                true if !is_one(&host.name) => "it needs the name of one host",
                true if source.id != host.owner.id => {
                    "only the oldest Ingress of a host can ask for it"
                }
                true => continue,
                false if self.settings.passthrough => "the PROXY protocol leaves no room for it",
                false => "the controller runs without --enable-ssl-passthrough",
            };
            let why = format!("{why}; weir ends TLS itself");
            self.say(&source.id, Severity::Warning, "NoPassthrough", "ssl-passthrough", &why);
        }
        if on && is_one(&host.name) && host.owner.options.passthrough {
            let mut server = self.passthrough_server(host);
            self.owners.mark(&host.owner.id, std::slice::from_mut(&mut server));
            servers.push(server);
        }
        servers
    }

    /// The `stream` server that passes the host's connections to the Service of the path `/`. Other
    /// paths cannot be seen, since they are inside TLS.
    fn passthrough_server(&mut self, host: &Host) -> Directive {
        let root = host.routes.get(&root());
        let backend = root.and_then(|route| route.backend.clone());
        let namespace = &host.owner.id.namespace;
        let group = match &backend {
            Some((service, port)) => self.stream_group((namespace, service, port), false),
            None => Err("the host has no Service at the path /".to_owned()),
        };
        let group = group.unwrap_or_else(|why| {
            let why = format!("{why}; connections of TLS are closed");
            self.say(&host.owner.id, Severity::Error, "NoService", "ssl-passthrough", &why);
            let block = vec![line("server", ["127.0.0.1:9", "down"])];
            let made = line("upstream", [CLOSED]).with_block(block);
            self.streams.insert(CLOSED.to_owned(), vec![made]);
            CLOSED.to_owned()
        });
        let names: Vec<&str> = host.names().filter(|name| is_one(name)).collect();
        let then = line("proxy_pass", [group.as_str()]);
        reads_names(self.settings, &[], &names, then)
    }
}

/// The `stream` server at the ports of TLS for all other names.
pub(super) fn fallback_server(base: &Base) -> Option<Directive> {
    let all = || line("pass", [inner_socket(&base.settings).as_str()]);
    is_on(base).then(|| reads_names(&base.settings, &["default_server"], &["_"], all()))
}

fn reads_names(settings: &Settings, more: &[&str], names: &[&str], then: Directive) -> Directive {
    let listen = |address: &String| {
        line("listen", std::iter::once(address.as_str()).chain(more.iter().copied()))
    };
    let mut list: Vec<Directive> = settings.https.iter().map(listen).collect();
    list.push(line("server_name", names.iter().copied()));
    list.push(line("ssl_preread", ["on"]));
    list.push(then);
    line("server", []).with_block(list)
}
