//! A table by networks: the longest prefix wins.

use std::collections::HashMap;
use std::net::IpAddr;

use weir_conf::{Directive as Line, Error, Word};

use super::{GeoValue, network};
use crate::cidr::Cidr;

/// Values by network, separately for each family.
#[derive(Debug, Default)]
pub struct Networks {
    v4: NetworksByMask,
    v6: NetworksByMask,
}

/// Networks by mask, longest masks first.
#[derive(Debug, Default)]
struct NetworksByMask {
    masks: Vec<(u128, HashMap<u128, GeoValue>)>,
}

impl NetworksByMask {
    /// Adds a network. Returns the value that it had.
    fn insert(&mut self, net: u128, mask: u128, value: GeoValue) -> Option<GeoValue> {
        let at = self.masks.partition_point(|(m, _)| *m > mask);
        if self.masks.get(at).is_none_or(|(m, _)| *m != mask) {
            self.masks.insert(at, (mask, HashMap::new()));
        }
        self.masks.get_mut(at).and_then(|(_, nets)| nets.insert(net, value))
    }

    fn remove(&mut self, net: u128, mask: u128) -> bool {
        let level = self.masks.iter_mut().find(|(m, _)| *m == mask);
        level.is_some_and(|(_, nets)| nets.remove(&net).is_some())
    }

    fn find(&self, address: u128) -> Option<&[u8]> {
        self.masks.iter().find_map(|(mask, nets)| nets.get(&(address & mask))).map(|v| &**v)
    }
}

impl Networks {
    /// True until a network was added.
    pub fn is_empty(&self) -> bool {
        self.v4.masks.is_empty() && self.v6.masks.is_empty()
    }

    /// The value for an address. A subject without an IP address counts as the broadcast address.
    pub fn find(&self, ip: Option<IpAddr>) -> Option<&[u8]> {
        match ip {
            Some(IpAddr::V6(ip)) => self.v6.find(ip.to_bits()),
            Some(IpAddr::V4(ip)) => self.v4.find(u128::from(ip.to_bits())),
            None => self.v4.find(u128::from(u32::MAX)),
        }
    }

    /// `default value`, `network value`, `delete network`
    pub fn line(
        &mut self,
        warnings: &mut Vec<Error>,
        line: &Line,
        value: &Word,
    ) -> Result<(), Error> {
        if line.name.is("default") {
            self.add(warnings, line, Cidr::V4(0, 0), value);
            self.add(warnings, line, Cidr::V6(0, 0), value);
        } else if line.name.is("delete") {
            let gone = match network(warnings, line, value)? {
                Cidr::V4(net, mask) => self.v4.remove(net.into(), mask.into()),
                Cidr::V6(net, mask) => self.v6.remove(net, mask),
                Cidr::Unix => false,
            };
            if !gone {
                let text = format!("no network \"{}\" to delete", value.lossy());
                warnings.push(line.warning(text));
            }
        } else {
            let cidr = network(warnings, line, &line.name)?;
            self.add(warnings, line, cidr, value);
        }
        Ok(())
    }

    fn add(&mut self, warnings: &mut Vec<Error>, line: &Line, cidr: Cidr, value: &Word) {
        let new: GeoValue = value.bytes.as_slice().into();
        let old = match cidr {
            Cidr::V4(net, mask) => self.v4.insert(net.into(), mask.into(), new),
            Cidr::V6(net, mask) => self.v6.insert(net, mask, new),
            Cidr::Unix => None,
        };
        if let Some(old) = old {
            let text = format!(
                "duplicate network \"{}\", value: \"{}\", old value: \"{}\"",
                line.name.lossy(),
                value.lossy(),
                String::from_utf8_lossy(&old)
            );
            warnings.push(line.warning(text));
        }
    }
}
