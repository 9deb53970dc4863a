//! Rules that allow and deny addresses.

use std::net::IpAddr;

use weir_conf::{Directive, Error};

use crate::address::{self, Address};
use crate::cidr::Cidr;

/// The rules of `allow` and `deny`. The first one that applies decides.
#[derive(Debug, Clone, Default)]
pub struct Rules(Vec<Rule>);

#[derive(Debug, Clone, Copy)]
struct Rule {
    deny: bool,
    source: RuleSource,
}

#[derive(Debug, Clone, Copy)]
enum RuleSource {
    All,
    These(Cidr),
}

impl Rule {
    fn applies(&self, address: &Address) -> bool {
        match self.source {
            RuleSource::All => *address != Address::Unknown,
            RuleSource::These(cidr) => cidr.contains(address),
        }
    }
}

impl Rules {
    /// There are no rules.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether clients that no other rule matches are denied.
    pub fn deny_the_rest(&self) -> bool {
        let of_all = |rule: &&Rule| matches!(rule.source, RuleSource::All);
        self.0.iter().find(of_all).is_some_and(|rule| rule.deny)
    }

    /// Whether an address is allowed. `None` if no rule applies.
    pub fn allow(&self, address: &Address) -> Option<bool> {
        self.0.iter().find(|rule| rule.applies(address)).map(|rule| !rule.deny)
    }

    /// Reads `allow address|network|unix:|all` or `deny ...`. With `first`, the first line of its
    /// block, inherited rules are dropped.
    pub fn read(
        &mut self,
        d: &Directive,
        first: bool,
        warnings: &mut Vec<Error>,
    ) -> Result<(), Error> {
        let Some(word) = d.arg(0) else { return Ok(()) };
        let source = match word.is("all") {
            true => RuleSource::All,
            false => {
                RuleSource::These(network(d, warnings).ok_or_else(|| d.invalid("parameter", word))?)
            }
        };
        if first {
            self.0.clear();
        }
        self.0.push(Rule { deny: d.name.is("deny"), source });
        Ok(())
    }
}

/// The network in a directive's argument. `None` if the argument is no network.
pub fn network(d: &Directive, warnings: &mut Vec<Error>) -> Option<Cidr> {
    let word = d.arg(0)?;
    let (cidr, odd) = Cidr::parse(&word.bytes)?;
    if odd {
        let text = format!("low address bits of {} are meaningless", word.lossy());
        warnings.push(d.warning(text));
    }
    Some(cidr)
}

/// Reads `set_real_ip_from ADDRESS|NETWORK|NAME|unix:`. The first line of a block replaces the
/// inherited list.
pub fn read_trusted(
    trusted: &mut Vec<Cidr>,
    d: &Directive,
    first: bool,
    warnings: &mut Vec<Error>,
) -> Result<(), Error> {
    let networks = networks(d, warnings)?;
    if first {
        trusted.clear();
    }
    trusted.extend(networks);
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
