//! The administrator's settings, for all objects.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use weir_conf::Directive;

use crate::gateway::ranges::AddressRange;

/// Which pods a group uses.
#[derive(Debug, Clone, Copy)]
pub struct PodChoice<'a> {
    /// Whether loopback addresses are used; for tests.
    pub loopback: bool,
    /// The zone of this pod. If all ready pods have hints for zones, those with a hint for this one
    /// are used alone.
    pub zone: Option<&'a str>,
}

/// The settings of a controller. Tenants cannot change them.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The administrator's own directives: the file that the server starts with. The configuration
    /// begins with them, and they take precedence.
    pub base: Vec<Directive>,
    /// The `spec.controller` of the classes that are served.
    pub controllers: Vec<String>,
    /// Whether Ingresses without a class are served.
    pub without_class: bool,
    /// Whether Ingresses of all classes are served. Manifests without a class do not show which are
    /// weir's.
    pub any_class: bool,
    /// Arguments of `listen` for plain HTTP.
    pub http: Vec<String>,
    /// Arguments of `listen` for TLS.
    pub https: Vec<String>,
    /// The port of plain HTTP that clients know, if it is not the listening port.
    pub http_port: Option<u16>,
    /// The port of TLS that clients know, whatever the listening port is. Redirects to HTTPS name
    /// it, if it is not 443.
    pub https_port: u16,
    /// The directory of certificates and password files.
    pub state: PathBuf,
    /// The access log, unless the controller's ConfigMap names another.
    pub access_log: String,
    /// The Secret with the certificate for hosts that have none: namespace and name.
    pub default_certificate: Option<(String, String)>,
    /// The `acme_issuer` of the administrator's file for hosts whose Ingresses name no Secret.
    pub acme_issuer: Option<String>,
    /// The Service for hosts and paths without a rule: namespace and name.
    pub default_backend: Option<(String, String)>,
    /// Whether Ingresses of several namespaces may share a host.
    pub shared_hosts: bool,
    /// Directives that snippets may have. If empty, no snippet is taken.
    pub snippet_directives: BTreeSet<String>,
    /// Arguments of `resolver`, which Services of the type ExternalName need.
    pub resolver: Vec<String>,
    /// The domain of the cluster, such as `cluster.local`. It completes names that end in `.svc`.
    pub cluster_domain: Option<String>,
    /// The served value of the annotation `kubernetes.io/ingress.class`, beside the names of served
    /// classes.
    pub class: Option<String>,
    /// Whether `spec.ingressClassName` with that value is served, too, whatever the controller of
    /// the class is.
    pub class_by_name: bool,
    /// Labels of the namespaces whose Ingresses are served. If empty, those of all are.
    pub namespace_labels: BTreeMap<String, String>,
    /// Whether Ingresses for all hosts are left out.
    pub no_catch_all: bool,
    /// Whether Services of the type ExternalName are left out.
    pub no_external_names: bool,
    /// The ConfigMaps that map ports of TCP and of UDP to Services.
    pub sessions: [Option<(String, String)>; 2],
    /// Whether upstreams may terminate TLS. The server name is then read from the handshake first.
    pub passthrough: bool,
    /// A certificate and key in PEM for hosts that have none, made by this program. Without it,
    /// their handshakes are refused.
    pub own_certificate: Option<Vec<u8>>,
    /// Whether the servers of groups are in files that running workers follow, or lines of the
    /// configuration.
    pub servers_in_files: bool,
    /// Whether upstream servers may have loopback addresses; for tests.
    pub loopback: bool,
    /// The zone of this pod, if pods with hints for it are preferred.
    pub zone: Option<String>,
    /// The `spec.controllerName` of the GatewayClasses that are served.
    pub gateway_controllers: Vec<String>,
    /// Addresses that Gateways listen on, without ports. An empty one is all addresses of IPv4.
    pub gateway_addresses: Vec<String>,
    /// Ranges from which each Gateway gets an address of its own. If empty, all listen on
    /// `gateway_addresses`.
    pub gateway_ranges: Vec<AddressRange>,
    /// The addresses of single Gateways: namespace and name.
    pub addresses_of: BTreeMap<(String, String), Vec<String>>,
    /// Addresses or names, for clients, of Gateways that have no address of their own. Their
    /// statuses show them.
    pub published: Vec<String>,
    /// Whether these are a Service's whose load balancer has no address yet.
    pub awaits_address: bool,
    /// The addresses of Gateways' own load balancers, by namespace and name. `None` if Gateways
    /// have none.
    pub balancers_of: Option<BTreeMap<(String, String), Vec<String>>>,
    /// The listening ports for ports of listeners, where they differ.
    pub gateway_ports: BTreeMap<u16, u16>,
    /// Ports that no listener may have.
    pub closed_ports: BTreeSet<u16>,
    /// The file with the certificate authorities that the system trusts.
    pub system_authorities: PathBuf,
    /// The controller's ConfigMap: namespace and name.
    pub config_map: Option<(String, String)>,
    /// The data of the controller's ConfigMap, as for ingress-nginx: defaults of annotations and
    /// global settings.
    pub defaults: BTreeMap<String, String>,
}

impl Settings {
    /// The directives of `http` in the administrator's file.
    pub(crate) fn base_http(&self) -> impl Iterator<Item = &Directive> {
        self.base.iter().filter(|directive| directive.name.is("http")).flat_map(Directive::block)
    }

    /// Whether the configuration has a resolver.
    pub(crate) fn resolves(&self) -> bool {
        !self.resolver.is_empty() || self.base_http().any(|d| d.name.is("resolver"))
    }

    /// The arguments of `resolver`; empty if there is no name server. `disable-ipv6-dns` adds
    /// `ipv6=off`.
    pub(crate) fn resolver_words(&self) -> Vec<&str> {
        let mut words: Vec<&str> = self.resolver.iter().map(String::as_str).collect();
        let off = self.defaults.get("disable-ipv6-dns").is_some_and(|text| text.trim() == "true");
        if off && !words.is_empty() && !words.iter().any(|word| word.starts_with("ipv6=")) {
            words.push("ipv6=off");
        }
        words
    }

    /// A name as name servers know it. Name servers do not apply search domains.
    pub(crate) fn whole_name(&self, name: &str) -> String {
        match &self.cluster_domain {
            Some(domain) if name.ends_with(".svc") => format!("{name}.{domain}"),
            _ => name.to_owned(),
        }
    }

    /// The ports that clients know, by listening port. The empty port is the socket of
    /// passed-through connections, which are all TLS.
    pub(crate) fn public_ports(&self) -> BTreeMap<String, u16> {
        let gateways = self.gateway_ports.iter().map(|(known, own)| (own.to_string(), *known));
        let of = |words: &[String], known: u16| -> Vec<(String, u16)> {
            let ports = words.iter().filter_map(|word| word.rsplit(':').next());
            ports.map(|port| (port.to_owned(), known)).collect()
        };
        let mut ports: BTreeMap<String, u16> = gateways.collect();
        ports.extend(self.http_port.iter().flat_map(|known| of(&self.http, *known)));
        ports.extend(of(&self.https, self.https_port));
        ports.extend(self.passthrough.then(|| (String::new(), self.https_port)));
        ports
    }

    /// The pods that groups use.
    pub(crate) fn pods(&self) -> PodChoice<'_> {
        PodChoice { loopback: self.loopback, zone: self.zone.as_deref() }
    }

    /// Whether a key of the ConfigMap is "true".
    pub(crate) fn flag(&self, key: &str) -> bool {
        self.defaults.get(key).is_some_and(|value| value.trim() == "true")
    }

    /// The comma-separated words of a key of the ConfigMap.
    pub(crate) fn list(&self, key: &str) -> impl Iterator<Item = &str> {
        let text = self.defaults.get(key).map_or("", String::as_str);
        text.split(',').map(str::trim).filter(|word| !word.is_empty())
    }
}

impl Default for Settings {
    fn default() -> Settings {
        let words = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect();
        Settings {
            base: Vec::new(),
            controllers: words(&["weir.internal/ingress", "k8s.io/ingress-nginx"]),
            without_class: false,
            any_class: false,
            http: words(&["80", "[::]:80"]),
            https: words(&["443", "[::]:443"]),
            http_port: None,
            https_port: 443,
            state: PathBuf::from("/var/lib/weir-ingress"),
            access_log: "logs/access.log".to_owned(),
            default_certificate: None,
            acme_issuer: None,
            default_backend: None,
            shared_hosts: false,
            snippet_directives: BTreeSet::new(),
            resolver: Vec::new(),
            cluster_domain: None,
            class: None,
            class_by_name: false,
            namespace_labels: BTreeMap::new(),
            no_catch_all: false,
            no_external_names: false,
            sessions: [None, None],
            passthrough: false,
            own_certificate: None,
            servers_in_files: false,
            loopback: false,
            zone: None,
            gateway_controllers: words(&["weir.internal/gateway"]),
            gateway_addresses: words(&["", "[::]"]),
            gateway_ranges: Vec::new(),
            addresses_of: BTreeMap::new(),
            published: Vec::new(),
            awaits_address: false,
            balancers_of: None,
            gateway_ports: BTreeMap::new(),
            closed_ports: BTreeSet::new(),
            system_authorities: PathBuf::from("/etc/ssl/certs/ca-certificates.crt"),
            config_map: None,
            defaults: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_ipv6_are_asked_for_unless_the_config_map_says_no() {
        let words = |resolver: &[&str], value: &str| {
            let settings = Settings {
                resolver: resolver.iter().map(|word| (*word).to_owned()).collect(),
                defaults: BTreeMap::from([("disable-ipv6-dns".to_owned(), value.to_owned())]),
                ..Settings::default()
            };
            settings.resolver_words().join(" ")
        };
        assert_eq!(words(&["10.0.0.1", "valid=5s"], "true"), "10.0.0.1 valid=5s ipv6=off");
        assert_eq!(words(&["10.0.0.1"], "false"), "10.0.0.1");
        assert_eq!(words(&["10.0.0.1", "ipv6=on"], "true"), "10.0.0.1 ipv6=on");
        assert_eq!(words(&[], "true"), "");
    }
}
