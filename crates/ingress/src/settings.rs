//! What the administrator decides, for all objects.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use weir_conf::Directive;

use crate::gateway::ranges::AddressRange;

/// Which pods a group has.
#[derive(Debug, Clone, Copy)]
pub struct PodChoice<'a> {
    /// They may be at loopback addresses; for tests.
    pub loopback: bool,
    /// The zone of this pod: those that Kubernetes means for it are enough, where it means pods for each zone.
    pub zone: Option<&'a str>,
}

/// The settings of a controller. Tenants cannot change them.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The administrator's own directives: the whole of a file that the server starts with. The configuration begins with
    /// them, and what they say stands.
    pub base: Vec<Directive>,
    /// The `spec.controller` of the classes that are served.
    pub controllers: Vec<String>,
    /// Whether Ingresses without a class are served, too.
    pub without_class: bool,
    /// Whether Ingresses of all classes are served: manifests without a class cannot say which are weir's.
    pub any_class: bool,
    /// Where plain HTTP is listened for: arguments of `listen`.
    pub http: Vec<String>,
    /// Where TLS is listened for.
    pub https: Vec<String>,
    /// The port that clients know for plain HTTP, if it is not the one that is listened on.
    pub http_port: Option<u16>,
    /// The port that clients know for TLS, whichever is listened on: redirects to https name it, if it is not 443.
    pub https_port: u16,
    /// The directory of certificates and password files.
    pub state: PathBuf,
    /// The access log, unless the controller's ConfigMap names another.
    pub access_log: String,
    /// Certificate and key for hosts that have none: `namespace/name` of a Secret.
    pub default_certificate: Option<(String, String)>,
    /// The `acme_issuer` of the administrator's file that is asked for the certificates of hosts whose Ingresses name no Secret.
    pub acme_issuer: Option<String>,
    /// The Service for hosts and paths that no rule has: namespace, name, port.
    pub default_backend: Option<(String, String)>,
    /// Whether Ingresses of several namespaces may share a host.
    pub shared_hosts: bool,
    /// Directives that snippets may have; empty: no snippet is taken.
    pub snippet_directives: BTreeSet<String>,
    /// Arguments of `resolver`, which Services of the type ExternalName need.
    pub resolver: Vec<String>,
    /// The domain of the cluster, as `cluster.local`: it completes names that end in `.svc`.
    pub cluster_domain: Option<String>,
    /// The value of the annotation `kubernetes.io/ingress.class` that is served, beside the names of served classes.
    pub class: Option<String>,
    /// Whether a class counts as served by that name, too, whatever its controller is.
    pub class_by_name: bool,
    /// Labels that namespaces must have whose Ingresses are served; empty: all are.
    pub namespace_labels: BTreeMap<String, String>,
    /// Whether Ingresses that are for all hosts are left out.
    pub no_catch_all: bool,
    /// Whether Services of the type ExternalName are left out.
    pub no_external_names: bool,
    /// The ConfigMaps with ports of TCP and of UDP, and the Service behind each.
    pub sessions: [Option<(String, String)>; 2],
    /// Whether hosts may have their TLS end behind weir: then the name in a handshake is read before TLS.
    pub passthrough: bool,
    /// Certificate and key in PEM for hosts that have none, made by the program; without it their handshakes are refused.
    pub own_certificate: Option<Vec<u8>>,
    /// Whether the servers of groups stand in files that running workers follow; else they are lines of the configuration.
    pub servers_in_files: bool,
    /// Whether servers behind may be at loopback addresses; for tests.
    pub loopback: bool,
    /// The zone of the cluster that this pod is in, if its pods are enough where Kubernetes means them for it.
    pub zone: Option<String>,
    /// The `spec.controllerName` of the GatewayClasses that are served.
    pub gateway_controllers: Vec<String>,
    /// Addresses that Gateways listen on, without ports; an empty one is any of IPv4.
    pub gateway_addresses: Vec<String>,
    /// Ranges of which each Gateway gets an address of its own; empty: all listen on `gateway_addresses`.
    pub gateway_ranges: Vec<AddressRange>,
    /// The addresses of single Gateways: namespace and name.
    pub addresses_of: BTreeMap<(String, String), Vec<String>>,
    /// Where clients reach Gateways that have no address of their own: addresses or names for their statuses.
    pub published: Vec<String>,
    /// Whether that is a Service whose balancer has no address yet.
    pub awaits_address: bool,
    /// The ports that are listened on for those of listeners, where they differ.
    pub gateway_ports: BTreeMap<u16, u16>,
    /// Ports that no listener may have.
    pub closed_ports: BTreeSet<u16>,
    /// The certificates of the authorities that the machine trusts.
    pub system_authorities: PathBuf,
    /// The name of the controller's ConfigMap: namespace and name.
    pub config_map: Option<(String, String)>,
    /// The ConfigMap of the controller, as ingress-nginx has it: defaults for annotations and a few global settings.
    pub defaults: BTreeMap<String, String>,
}

impl Settings {
    /// What the administrator's file says in `http`.
    pub(crate) fn base_http(&self) -> impl Iterator<Item = &Directive> {
        self.base.iter().filter(|directive| directive.name.is("http")).flat_map(Directive::block)
    }

    /// Whether names of servers can be resolved while requests are served.
    pub(crate) fn resolves(&self) -> bool {
        !self.resolver.is_empty() || self.base_http().any(|d| d.name.is("resolver"))
    }

    /// The words of `resolver`; none if there is no name server. Without addresses of IPv6 where the ConfigMap says so.
    pub(crate) fn resolver_words(&self) -> Vec<&str> {
        let mut words: Vec<&str> = self.resolver.iter().map(String::as_str).collect();
        let off = self.defaults.get("disable-ipv6-dns").is_some_and(|text| text.trim() == "true");
        if off && !words.is_empty() && !words.iter().any(|word| word.starts_with("ipv6=")) {
            words.push("ipv6=off");
        }
        words
    }

    /// A name as name servers know it: they do not try search domains.
    pub(crate) fn whole_name(&self, name: &str) -> String {
        match &self.cluster_domain {
            Some(domain) if name.ends_with(".svc") => format!("{name}.{domain}"),
            _ => name.to_owned(),
        }
    }

    /// The ports that clients know for those that are listened on. A socket of this machine has none, and TLS alone comes that way.
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

    /// Which pods groups have.
    pub(crate) fn pods(&self) -> PodChoice<'_> {
        PodChoice { loopback: self.loopback, zone: self.zone.as_deref() }
    }

    /// Whether a key of the ConfigMap is "true".
    pub(crate) fn flag(&self, key: &str) -> bool {
        self.defaults.get(key).is_some_and(|value| value.trim() == "true")
    }

    /// The words of a key of the ConfigMap, which commas separate.
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
