//! Variables whose values depend on an address. nginx: ngx_http_geo_module.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use weir_conf::{Directive as Line, Error, Word};
use weir_proto::http1::HeaderId;

use crate::address::Address;
use crate::cidr::{self, Cidr};
use crate::config::scope::{Directive, Scope, Set};
use crate::forwarded;
use crate::modules::{Module, Settings};
use crate::request::Request;
use crate::variables::VariableId;
use weir_values::Subject;

mod networks;
mod ranges;

use networks::Networks;
use ranges::Ranges;

/// Settings: none, each `geo` is a variable.
#[derive(Debug, Clone, Default)]
pub struct Conf;

impl Settings for Conf {}

const DIRECTIVES: &[Directive] = &[Directive {
    name: "geo",
    help: "A variable whose value a table gives for an address.",
    set: Set::Simple(set),
}];

/// The module.
pub const MODULE: Module = Module { name: "http_geo", directives: DIRECTIVES, init: |_| {} };

/// A value of the table.
type Value = Arc<[u8]>;

/// One `geo`.
#[derive(Debug)]
struct Geo {
    /// The variable that holds the address; the client's where none is named.
    source: Option<VariableId>,
    table: Table,
    /// Clients whose `X-Forwarded-For` is believed.
    proxies: Vec<Cidr>,
    recursive: bool,
}

#[derive(Debug)]
enum Table {
    Networks(Networks),
    Ranges(Ranges),
}

impl Geo {
    fn read(&self, r: &mut Request, out: &mut Vec<u8>) {
        let address = self.address(r).map_or(Address::Unknown, |address| {
            if self.proxies.is_empty() {
                return address;
            }
            let lines: Vec<&[u8]> =
                r.head().all(HeaderId::XForwardedFor).map(|h| h.value.of(&r.buf)).collect();
            forwarded::client(&address, &lines, &self.proxies, self.recursive).unwrap_or(address)
        });
        let ip = address.ip();
        let value = match &self.table {
            Table::Networks(networks) => networks.find(ip),
            Table::Ranges(ranges) => ranges.find(ip),
        };
        out.extend_from_slice(value.map_or(b"", |value| value));
    }

    fn address(&self, r: &mut Request) -> Option<Address> {
        let Some(source) = self.source else { return Some(r.peer().clone()) };
        let ip: IpAddr = cidr::parse_ip(&r.variable_value(source)?)?;
        Some(Address::Inet(SocketAddr::new(ip, 0)))
    }
}

/// `geo [$address] $variable { ... }`
fn set(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
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
    let table = Table::Networks(Networks::default());
    let mut geo = Geo { source, table, proxies: Vec::new(), recursive: false };
    let mut volatile = false;
    for line in d.block() {
        match (line.name.bytes.as_slice(), line.args.as_slice()) {
            (b"ranges", []) => geo.use_ranges(line)?,
            (b"proxy_recursive", []) => geo.recursive = true,
            (b"volatile", []) => volatile = true,
            (b"proxy", [net]) => {
                let cidr = network(s, line, net)?;
                geo.proxies.push(cidr);
            }
            (_, [value]) => match &mut geo.table {
                Table::Networks(networks) => networks.line(s, line, value)?,
                Table::Ranges(ranges) => ranges.line(s, line, value)?,
            },
            _ => return Err(line.error("invalid number of the geo parameters")),
        }
    }
    s.setup.variables.define_changeable(&name, !volatile, move |r, out| {
        geo.read(r, out);
        true
    });
    Ok(())
}

impl Geo {
    fn use_ranges(&mut self, line: &Line) -> Result<(), Error> {
        match &self.table {
            Table::Networks(networks) if !networks.is_empty() => Err(line.error(
                "the \"ranges\" directive must be the first directive inside \"geo\" block",
            )),
            Table::Networks(_) => {
                self.table = Table::Ranges(Ranges::default());
                Ok(())
            }
            Table::Ranges(_) => Ok(()),
        }
    }
}

/// A network; the broadcast address is one here.
fn network(s: &mut Scope<'_, '_>, line: &Line, word: &Word) -> Result<Cidr, Error> {
    if word.is("255.255.255.255") {
        return Ok(Cidr::V4(u32::MAX, u32::MAX));
    }
    let parsed = Cidr::parse(&word.bytes).filter(|(cidr, _)| *cidr != Cidr::Unix);
    let (cidr, odd) = parsed.ok_or_else(|| line.invalid("network", word))?;
    if odd {
        let text = format!("low address bits of {} are meaningless", word.lossy());
        s.setup.warnings.push(line.warning(text));
    }
    Ok(cidr)
}

#[cfg(test)]
mod tests;
