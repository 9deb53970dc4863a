//! `..._bind`: the local address of connections to servers.

use std::net::SocketAddr;

use weir_conf::{Directive, Error};
use weir_log::Level;
use weir_values::{Address, Reading, Subject, Template, forwarded};

/// The local address of connections.
#[derive(Debug, Clone)]
pub struct Bind {
    address: Template,
    /// The address need not belong to this machine (IP_TRANSPARENT).
    pub transparent: bool,
}

impl Bind {
    /// Reads `ADDRESS [transparent]`; `None` for `off`.
    pub fn read<S: Subject>(s: &mut Reading<'_, S>, d: &Directive) -> Result<Option<Bind>, Error> {
        let Some(word) = d.args.first() else { return Ok(None) };
        if d.args.len() == 1 && word.is("off") {
            return Ok(None);
        }
        let transparent = match d.args.get(1) {
            None => false,
            Some(w) if w.is("transparent") => true,
            Some(w) => return Err(d.invalid("parameter", w)),
        };
        let address = s.template(d, word)?;
        if address.constant().is_some_and(|text| parse(text).is_none()) {
            return Err(d.invalid("address", word));
        }
        Ok(Some(Bind { address, transparent }))
    }

    /// The address, if it is the same for all requests.
    pub fn constant(&self) -> Option<SocketAddr> {
        parse(self.address.constant()?)
    }

    /// The address for a subject. None if the value is no address, which is logged unless it is
    /// empty.
    pub fn address<S: Subject>(&self, subject: &mut S) -> Option<SocketAddr> {
        let text = self.address.eval(subject).into_owned();
        let found = parse(&text);
        if found.is_none() && !text.is_empty() {
            let text = String::from_utf8_lossy(&text);
            subject.log(Level::Error, format_args!("invalid local address \"{text}\""));
        }
        found
    }
}

fn parse(text: &[u8]) -> Option<SocketAddr> {
    match forwarded::parse(text)? {
        Address::Inet(address) => Some(address),
        _ => None,
    }
}
