//! Variables with values from a table of addresses. nginx: ngx_http_geo_module.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use weir_conf::{Directive as Line, Error, Spot, Word};

use crate::address::Address;
use crate::cidr::{self, Cidr};
use crate::forwarded;

use crate::reading::Reading;
use crate::subject::Subject;
use crate::variables::VariableId;

mod networks;
mod ranges;

use networks::Networks;
use ranges::Ranges;

/// A value of the table.
type GeoValue = Arc<[u8]>;

/// One `geo`.
#[derive(Debug)]
struct Geo {
    /// The variable with the address. `None`: the client's address.
    source: Option<VariableId>,
    table: GeoTable,
    /// Proxies whose `X-Forwarded-For` is trusted.
    proxies: Vec<Cidr>,
    recursive: bool,
}

#[derive(Debug)]
enum GeoTable {
    Networks(Networks),
    Ranges(Ranges),
}

impl Geo {
    fn read<S: Subject>(&self, r: &mut S, out: &mut Vec<u8>) {
        let address = self.address(r).map_or(Address::Unknown, |address| {
            if self.proxies.is_empty() {
                return address;
            }
            forwarded::client(&address, &r.forwarded_for(), &self.proxies, self.recursive)
                .unwrap_or(address)
        });
        let ip = address.ip();
        let value = match &self.table {
            GeoTable::Networks(networks) => networks.find(ip),
            GeoTable::Ranges(ranges) => ranges.find(ip),
        };
        out.extend_from_slice(value.map_or(b"", |value| value));
    }

    fn address<S: Subject>(&self, r: &mut S) -> Option<Address> {
        let Some(source) = self.source else { return Some(r.peer().clone()) };
        let ip: IpAddr = cidr::parse_ip(&r.variable_value(source)?)?;
        Some(Address::Inet(SocketAddr::new(ip, 0)))
    }
}

/// `geo [$address] $variable { ... }`. With `proxies`, the block may name trusted proxies.
pub fn read<S: Subject>(s: &mut Reading<'_, S>, d: &Line, proxies: bool) -> Result<(), Error> {
    let (source, variable) = match d.args.as_slice() {
        [variable] => (None, variable),
        [source, variable] => (Some(source), variable),
        _ => return Ok(()),
    };
    let source = match source {
        Some(word) => Some(s.refer_variable(d, word)?),
        None => None,
    };
    let name = s.new_variable(d, variable)?;
    let table = GeoTable::Networks(Networks::default());
    let mut geo = Geo { source, table, proxies: Vec::new(), recursive: false };
    let mut volatile = false;
    for line in d.block() {
        match (line.name.bytes.as_slice(), line.args.as_slice()) {
            (b"ranges", []) => geo.use_ranges(line)?,
            (b"proxy_recursive", []) if proxies => geo.recursive = true,
            (b"volatile", []) => volatile = true,
            (b"proxy", [net]) if proxies => {
                let cidr = network(s.warnings, line, net)?;
                geo.proxies.push(cidr);
            }
            (_, [value]) => {
                let text = std::iter::once(value.bytes.as_slice());
                s.variables.own_texts_of(name.as_bytes(), text, Spot::new(line, value));
                match &mut geo.table {
                    GeoTable::Networks(networks) => networks.line(s.warnings, line, value)?,
                    GeoTable::Ranges(ranges) => ranges.line(s.warnings, line, value)?,
                }
            }
            _ => return Err(line.error("invalid number of the geo parameters")),
        }
    }
    s.variables.define_changeable(&name, !volatile, move |r, out| {
        geo.read(r, out);
        true
    });
    Ok(())
}

impl Geo {
    fn use_ranges(&mut self, line: &Line) -> Result<(), Error> {
        match &self.table {
            GeoTable::Networks(networks) if !networks.is_empty() => Err(line.error(
                "the \"ranges\" directive must be the first directive inside \"geo\" block",
            )),
            GeoTable::Networks(_) => {
                self.table = GeoTable::Ranges(Ranges::default());
                Ok(())
            }
            GeoTable::Ranges(_) => Ok(()),
        }
    }
}

/// Parses a network. The broadcast address is valid here.
fn network(warnings: &mut Vec<Error>, line: &Line, word: &Word) -> Result<Cidr, Error> {
    if word.is("255.255.255.255") {
        return Ok(Cidr::V4(u32::MAX, u32::MAX));
    }
    let parsed = Cidr::parse(&word.bytes).filter(|(cidr, _)| *cidr != Cidr::Unix);
    let (cidr, odd) = parsed.ok_or_else(|| line.invalid("network", word))?;
    if odd {
        let text = format!("low address bits of {} are meaningless", word.lossy());
        warnings.push(line.warning(text));
    }
    Ok(cidr)
}

#[cfg(test)]
mod tests;
