//! The name servers in /etc/resolv.conf.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use crate::annotations::values;

/// The content of a resolv.conf.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameServers {
    /// Arguments of `resolver`.
    pub addresses: Vec<String>,
    /// The domain of the cluster, such as `cluster.local`, if this is a pod.
    pub cluster_domain: Option<String>,
}

impl NameServers {
    /// Reads a file. A missing file has no name servers.
    pub fn read(path: &Path) -> NameServers {
        NameServers::of(&fs::read_to_string(path).unwrap_or_default())
    }

    /// Parses a text.
    pub fn of(text: &str) -> NameServers {
        let mut found = NameServers::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    // `resolver` does not take an address with a zone, such as fe80::1%eth0.
                    let address = words.next().and_then(|word| word.parse::<IpAddr>().ok());
                    found.addresses.extend(address.map(|address| match address {
                        IpAddr::V4(v4) => v4.to_string(),
                        IpAddr::V6(v6) => format!("[{v6}]"),
                    }));
                }
                // The last `search` line counts.
                Some("search") => {
                    let domain = words.find_map(|word| word.strip_prefix("svc."));
                    let domain = domain.map(|domain| domain.trim_end_matches('.').to_lowercase());
                    found.cluster_domain = domain.filter(|domain| values::is_host(domain, false));
                }
                _ => {}
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_names_its_name_servers_and_the_domain_of_its_cluster() {
        let text = "# of kubelet\nsearch old.test svc.old.test\n\
            search d.svc.cluster.local svc.cluster.local cluster.local\n\
            nameserver 10.96.0.10\nnameserver\t2001:DB8::53 \nnameserver fe80::1%eth0\nnameserver\noptions ndots:5\n";
        let found = NameServers::of(text);
        assert_eq!(found.addresses, ["10.96.0.10", "[2001:db8::53]"]);
        assert_eq!(found.cluster_domain.as_deref(), Some("cluster.local"));
        for text in ["", "search example.com\n", "search svc.;x\n"] {
            assert_eq!(NameServers::of(text), NameServers::default(), "{text}");
        }
    }
}
