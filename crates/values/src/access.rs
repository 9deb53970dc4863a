//! Allows and denies by an address.

use std::net::IpAddr;

use weir_conf::{Directive, Error};

use crate::address::{self, Address};
use crate::cidr::Cidr;

/// `allow` and `deny`: the first that applies decides.
#[derive(Debug, Clone, Default)]
pub struct Rules(Vec<Rule>);

#[derive(Debug, Clone, Copy)]
struct Rule {
    deny: bool,
    who: Who,
}

#[derive(Debug, Clone, Copy)]
enum Who {
    All,
    These(Cidr),
}

impl Rule {
    fn applies(&self, address: &Address) -> bool {
        match self.who {
            Who::All => *address != Address::Unknown,
            Who::These(cidr) => cidr.contains(address),
        }
    }
}

impl Rules {
    /// Nothing is said.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether clients that no other rule names are refused.
    pub fn deny_the_rest(&self) -> bool {
        let of_all = |rule: &&Rule| matches!(rule.who, Who::All);
        self.0.iter().find(of_all).is_some_and(|rule| rule.deny)
    }

    /// Whether an address is let in; none where no rule applies.
    pub fn allow(&self, address: &Address) -> Option<bool> {
        self.0.iter().find(|rule| rule.applies(address)).map(|rule| !rule.deny)
    }

    /// `allow address|network|unix:|all`, `deny ...`; `first`: the first of its block.
    pub fn read(
        &mut self,
        d: &Directive,
        first: bool,
        warnings: &mut Vec<Error>,
    ) -> Result<(), Error> {
        let Some(word) = d.arg(0) else { return Ok(()) };
        let who = match word.is("all") {
            true => Who::All,
            false => Who::These(network(d, warnings).ok_or_else(|| d.invalid("parameter", word))?),
        };
        if first {
            self.0.clear();
        }
        self.0.push(Rule { deny: d.name.is("deny"), who });
        Ok(())
    }
}

/// The network that a directive names, if it is one.
pub fn network(d: &Directive, warnings: &mut Vec<Error>) -> Option<Cidr> {
    let word = d.arg(0)?;
    let (cidr, odd) = Cidr::parse(&word.bytes)?;
    if odd {
        let text = format!("low address bits of {} are meaningless", word.lossy());
        warnings.push(d.warning(text));
    }
    Some(cidr)
}

/// `set_real_ip_from ADDRESS|NETWORK|NAME|unix:`; the first of a block replaces what was inherited.
pub fn believe(
    believed: &mut Vec<Cidr>,
    d: &Directive,
    first: bool,
    warnings: &mut Vec<Error>,
) -> Result<(), Error> {
    let networks = networks(d, warnings)?;
    if first {
        believed.clear();
    }
    believed.extend(networks);
    Ok(())
}

fn networks(d: &Directive, warnings: &mut Vec<Error>) -> Result<Vec<Cidr>, Error> {
    let Some(word) = d.arg(0) else { return Ok(Vec::new()) };
    if let Some(cidr) = network(d, warnings) {
        return Ok(vec![cidr]);
    }
    let whole = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => Cidr::V4(ip.to_bits(), u32::MAX),
        IpAddr::V6(ip) => Cidr::V6(ip.to_bits(), u128::MAX),
    };
    let found = address::named(&word.lossy()).map_err(|text| {
        d.error_at(word, format!("{text} in set_real_ip_from \"{}\"", word.lossy()))
    })?;
    Ok(found.into_iter().map(whole).collect())
}
