//! Name constraints of authorities: which names certificates below them may have. RFC 5280, section 4.2.1.10.

use super::cert::Certificate;
use super::der::{self, DerReader, DerValue};
use super::name::{begins_with, common_names, has_mail_address, is_whole};
use super::verify::VerifyError;

/// Tags of general names.
const MAIL_ADDRESS: u8 = 0x81;
const HOST: u8 = 0x82;
const DIRECTORY: u8 = 0xa4;
const IP: u8 = 0x87;

/// The most comparisons of names with constraints for one chain. They take some milliseconds.
pub const MOST: usize = 1 << 20;

/// The name constraints extension of an authority.
#[derive(Debug, Clone, Copy)]
pub struct NameConstraints<'a> {
    /// If one of these has the kind of a name, the name must be within one of them.
    permitted: DerReader<'a>,
    /// A name must be within none of these.
    excluded: DerReader<'a>,
}

impl<'a> NameConstraints<'a> {
    /// Reads the extension.
    pub fn read(mut value: DerReader<'a>) -> Option<Self> {
        let mut fields = value.require(der::SEQUENCE)?.inner();
        let mut part = |tag| fields.optional(tag).map_or(DerReader::new(&[]), |part| part.inner());
        let (permitted, excluded) = (part(0xa0), part(0xa1));
        let whole = |subtrees: DerReader<'a>| subtrees.each(|one| subtree(one).map(drop));
        whole(permitted)?;
        whole(excluded)?;
        fields.is_empty().then_some(NameConstraints { permitted, excluded })
    }

    /// Whether a certificate below the authority only has permitted names. `is_leaf`: its common
    /// names count as host names if it has no DNS name. `left`: how many more comparisons the chain
    /// may take.
    ///
    /// # Errors
    ///
    /// A name is outside, or cannot be compared.
    pub fn check(
        &self,
        certificate: &Certificate<'_>,
        is_leaf: bool,
        left: &mut usize,
    ) -> Result<(), VerifyError> {
        let others = certificate.extensions.alt_names.unwrap_or(DerReader::new(&[]));
        let hosts = match is_leaf && certificate.dns_names().next().is_none() {
            true => common_names(certificate.subject),
            false => Vec::new(),
        };
        let subtrees = self.permitted.count() + self.excluded.count();
        let names = others.count() + hosts.len() + 2;
        let rest = left.checked_sub(names.saturating_mul(subtrees));
        *left = rest.ok_or(VerifyError::NAME_CONSTRAINTS)?;
        if !certificate.subject.is_empty() {
            self.judge(DIRECTORY, certificate.subject)?;
        }
        if has_mail_address(certificate.subject) {
            self.judge(MAIL_ADDRESS, b"")?;
        }
        for other in others {
            match other.tag {
                DIRECTORY => self.judge(DIRECTORY, directory(&other)?)?,
                kind => self.judge(kind, other.body)?,
            }
        }
        hosts.iter().filter(|name| is_host(name)).try_for_each(|name| self.judge(HOST, name))
    }

    fn judge(&self, kind: u8, name: &[u8]) -> Result<(), VerifyError> {
        let within = |subtrees: DerReader<'a>, or: fn(&[u8], &[u8]) -> bool| {
            let (mut is_there, mut is_within) = (false, false);
            for base in subtrees.filter_map(subtree).filter(|base| base.tag == kind) {
                is_there = true;
                is_within |= is_below(kind, name, &base)? || kind == HOST && or(name, base.body);
            }
            Ok((is_there, is_within))
        };
        match (within(self.permitted, |_, _| false)?, within(self.excluded, has_below)?) {
            ((true, false), _) => Err(VerifyError::NOT_PERMITTED),
            (_, (_, true)) => Err(VerifyError::EXCLUDED),
            _ => Ok(()),
        }
    }
}

/// The base of a subtree. The subtree begins at the base itself and has no lower end, as RFC 5280
/// demands.
fn subtree(one: DerValue<'_>) -> Option<DerValue<'_>> {
    let mut fields = Some(one).filter(|one| one.tag == der::SEQUENCE)?.inner();
    let base = fields.next()?;
    let begins_there = fields.optional(0x80).is_none_or(|least| least.body == [0]);
    let is_good = match base.tag {
        DIRECTORY => directory(&base).is_ok(),
        kind => matches!(kind, 0x81 | 0x82 | 0x86..=0x88 | 0xa0 | 0xa3 | 0xa5),
    };
    (begins_there && fields.is_empty() && is_good).then_some(base)
}

/// The parts of a directory name. A name that cannot be read to its end is an error: it might seem
/// to be outside of a subtree that it is in.
fn directory<'a>(name: &DerValue<'a>) -> Result<&'a [u8], VerifyError> {
    let parts = name.inner().require(der::SEQUENCE).map(|parts| parts.body);
    parts.filter(|parts| is_whole(parts)).ok_or(VerifyError::NAME_CONSTRAINTS)
}

fn is_below(kind: u8, name: &[u8], base: &DerValue<'_>) -> Result<bool, VerifyError> {
    match (kind, name.len(), base.body.len()) {
        (DIRECTORY, ..) => Ok(begins_with(name, directory(base)?)),
        (HOST, ..) => Ok(is_below_host(name, base.body)),
        (IP, 4, 8) | (IP, 16, 32) => {
            let (network, mask) = base.body.split_at(name.len());
            let mut bytes = name.iter().zip(network).zip(mask);
            Ok(bytes.all(|((byte, network), mask)| byte & mask == network & mask))
        }
        (IP, 4, 32) | (IP, 16, 8) => Ok(false),
        _ => Err(VerifyError::NAME_CONSTRAINTS),
    }
}

/// Whether a host name equals the base or is below it. A base with a leading dot only has names
/// below it.
fn is_below_host(name: &[u8], base: &[u8]) -> bool {
    let Some((before, end)) = name.len().checked_sub(base.len()).map(|at| name.split_at(at)) else {
        return false;
    };
    let at_label = before.is_empty() || base.is_empty() || base.starts_with(b".");
    end.eq_ignore_ascii_case(base) && (at_label || before.ends_with(b"."))
}

/// Whether a wildcard may stand for the base, or for a name below a base with a leading dot.
fn has_below(name: &[u8], base: &[u8]) -> bool {
    let base = base.strip_prefix(b".").unwrap_or(base);
    let above = base.iter().position(|b| *b == b'.').and_then(|at| base.get(at..));
    name.strip_prefix(b"*").zip(above).is_some_and(|(end, above)| end.eq_ignore_ascii_case(above))
}

/// Whether a common name looks like a host name or a wildcard.
fn is_host(name: &[u8]) -> bool {
    let rest = name.strip_prefix(b"*.").unwrap_or(name);
    let is_label = |label: &[u8]| {
        let is_of_hosts = |b: &u8| b.is_ascii_alphanumeric() || b"-_".contains(b);
        let at_edge = label.starts_with(b"-") || label.ends_with(b"-");
        !label.is_empty() && !at_edge && label.iter().all(is_of_hosts)
    };
    name.contains(&b'.') && rest.split(|b| *b == b'.').all(is_label)
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, CidrSubnet, DistinguishedName, DnType, GeneralSubtree,
        IsCa, Issuer, KeyPair, NameConstraints, SanType,
    };

    use super::super::Purpose;
    use crate::Authorities;

    fn named(text: &str) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        if !text.is_empty() {
            params.distinguished_name.push(DnType::CommonName, text);
        }
        params
    }

    fn authority(
        name: &str,
        permitted: &[GeneralSubtree],
        excluded: &[GeneralSubtree],
    ) -> CertificateParams {
        let mut params = named(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        if !permitted.is_empty() || !excluded.is_empty() {
            let (permitted_subtrees, excluded_subtrees) = (permitted.to_vec(), excluded.to_vec());
            params.name_constraints =
                Some(NameConstraints { permitted_subtrees, excluded_subtrees });
        }
        params
    }

    /// The fault of a chain: a leaf with these names, an authority with these constraints, and a
    /// root.
    fn fault(
        permitted: &[GeneralSubtree],
        excluded: &[GeneralSubtree],
        common: &str,
        others: &[SanType],
    ) -> Option<u32> {
        let [root_key, key, own] = [(); 3].map(|()| KeyPair::generate().unwrap());
        let root = authority("root", &[], &[]);
        let anchor = root.self_signed(&root_key).unwrap();
        let root = Issuer::new(root, &root_key);
        let middle = authority("middle", permitted, excluded);
        let sent = middle.signed_by(&key, &root).unwrap();
        let mut leaf = named(common);
        leaf.subject_alt_names = others.to_vec();
        let leaf = leaf.signed_by(&own, &Issuer::new(middle, &key)).unwrap();
        let anchors = vec![anchor.der().to_vec()];
        let authorities = Authorities { anchors, lists: Vec::new(), depth: 1 };
        let chain = [leaf.der().clone(), sent.der().clone()];
        authorities.check(&chain, Purpose::Client).err().map(|fault| fault.code)
    }

    fn host(name: &str) -> SanType {
        SanType::DnsName(name.try_into().unwrap())
    }

    fn below(name: &str) -> GeneralSubtree {
        GeneralSubtree::DnsName(name.to_owned())
    }

    #[test]
    fn hosts_are_at_or_below_a_name() {
        let here = [below("a.example")];
        for (name, fits) in [
            ("a.example", true),
            ("A.Example", true),
            ("x.y.a.example", true),
            ("*.a.example", true),
            ("ba.example", false),
            ("example", false),
        ] {
            assert_eq!(fault(&here, &[], "", &[host(name)]), (!fits).then_some(47), "{name}");
            assert_eq!(fault(&[], &here, "", &[host(name)]), fits.then_some(48), "{name}");
        }
        assert_eq!(fault(&[below(".a.example")], &[], "", &[host("a.example")]), Some(47));
        assert_eq!(fault(&[below(".a.example")], &[], "", &[host("x.a.example")]), None);
        assert_eq!(fault(&[below("")], &[], "", &[host("b.example")]), None);
        assert_eq!(fault(&[below("b"), below("a.example")], &[], "", &[host("a.example")]), None);
        // A wildcard may stand for an excluded name.
        assert_eq!(fault(&[], &here, "", &[host("*.Example")]), Some(48));
        assert_eq!(fault(&[], &[below(".x.example")], "", &[host("*.example")]), Some(48));
        assert_eq!(fault(&[], &here, "", &[host("*.b.example")]), None);
        assert_eq!(fault(&here, &[], "", &[host("*.example")]), Some(47));
        let both = [host("a.example"), host("b.example")];
        assert_eq!(fault(&here, &[], "", &both), Some(47));
        assert_eq!(fault(&here, &[below("x.a.example")], "", &[host("x.a.example")]), Some(48));
    }

    #[test]
    fn a_common_name_counts_if_there_is_no_dns_name() {
        let here = [below("a.example")];
        for (name, fault_of) in [
            ("x.a.example", None),
            ("b.example", Some(47)),
            ("*.b.example", Some(47)),
            ("J. Smith", None),
            ("J.R.", None),
            ("a_b.c-d", Some(47)),
            ("-a.b", None),
            ("localhost", None),
        ] {
            assert_eq!(fault(&here, &[], name, &[]), fault_of, "{name}");
        }
        assert_eq!(fault(&here, &[], "b.example", &[host("a.example")]), None);
    }

    #[test]
    fn addresses_are_within_a_network() {
        let net = |text: &str| GeneralSubtree::IpAddress(text.parse::<CidrSubnet>().unwrap());
        let ip = |text: &str| SanType::IpAddress(text.parse().unwrap());
        let here = [net("10.1.0.0/16")];
        assert_eq!(fault(&here, &[], "", &[ip("10.1.2.3")]), None);
        assert_eq!(fault(&here, &[], "", &[ip("10.2.2.3")]), Some(47));
        assert_eq!(fault(&here, &[], "", &[ip("::1")]), Some(47));
        assert_eq!(fault(&here, &[], "", &[host("a.example")]), None);
        assert_eq!(fault(&[], &here, "", &[ip("10.1.2.3")]), Some(48));
        assert_eq!(fault(&[net("::/120")], &[], "", &[ip("::7")]), None);
        assert_eq!(fault(&[net("::/120")], &[], "", &[ip("::1:7")]), Some(47));
    }

    #[test]
    fn a_subject_is_below_a_directory() {
        let unit = |unit: &str| {
            let mut name = DistinguishedName::new();
            name.push(DnType::CommonName, unit);
            GeneralSubtree::DirectoryName(name)
        };
        assert_eq!(fault(&[unit("me")], &[], "me", &[]), None);
        assert_eq!(fault(&[unit("Me")], &[], "me", &[]), None);
        assert_eq!(fault(&[unit("me")], &[], "you", &[]), Some(47));
        assert_eq!(fault(&[unit("me")], &[], "", &[host("a.example")]), None);
        assert_eq!(fault(&[], &[unit("me")], "me", &[]), Some(48));
    }

    #[test]
    fn malformed_name_constraints_are_refused() {
        use super::{NameConstraints, der};
        let good = der::write(0x82, &[b"a"]);
        let name = |end: &[u8]| {
            let text = der::write(0x0c, &[b"me"]);
            let one = der::write(der::SEQUENCE, &[&der::write(der::OID, &[&[0x55, 4, 3]]), &text]);
            der::write(0xa4, &[&der::write(der::SEQUENCE, &[&der::write(der::SET, &[&one]), end])])
        };
        let reads = |base: &[u8], behind: &[u8]| {
            let subtrees = der::write(0xa1, &[&der::write(der::SEQUENCE, &[base, behind])]);
            let all = der::write(der::SEQUENCE, &[&subtrees]);
            NameConstraints::read(der::DerReader::new(&all)).is_some()
        };
        assert!(reads(&good, &[]) && reads(&good, &[0x80, 1, 0]) && reads(&name(&[]), &[]));
        assert!(!reads(&good, &[0x80, 1, 1]) && !reads(&good, &[0x81, 1, 9]));
        assert!(!reads(&der::write(0x89, &[b"a"]), &[]));
        assert!(!reads(&name(&[0x31, 5, 0]), &[]) && !reads(&good, &[0x1f]) && !reads(&[], &[]));
    }

    /// One authority alone would need fewer than the most.
    #[test]
    fn comparisons_of_a_chain_are_bounded() {
        let fault = |constraints: usize| {
            let excluded = vec![GeneralSubtree::DnsName("b.test".to_owned()); constraints];
            let [root_key, upper_key, lower_key, own] =
                [(); 4].map(|()| KeyPair::generate().unwrap());
            let root = authority("root", &[], &[]);
            let anchors = vec![root.self_signed(&root_key).unwrap().der().to_vec()];
            let [upper, lower] = ["upper", "lower"].map(|name| authority(name, &[], &excluded));
            let sent_upper = upper.signed_by(&upper_key, &Issuer::new(root, &root_key)).unwrap();
            let upper = Issuer::new(upper, &upper_key);
            let sent_lower = lower.signed_by(&lower_key, &upper).unwrap();
            let mut leaf = named("");
            leaf.subject_alt_names = vec![SanType::DnsName("a.test".try_into().unwrap()); 1000];
            let leaf = leaf.signed_by(&own, &Issuer::new(lower, &lower_key)).unwrap();
            let authorities = Authorities { anchors, lists: Vec::new(), depth: 5 };
            let chain = [leaf, sent_lower, sent_upper].map(|sent| sent.der().clone());
            authorities.check(&chain, Purpose::Client).err().map(|fault| fault.code)
        };
        assert_eq!(fault(400), None);
        assert_eq!(fault(700), Some(51));
    }

    #[test]
    fn names_that_are_not_compared_refuse_the_chain() {
        let mail = SanType::Rfc822Name("a@b.example".try_into().unwrap());
        let here = [GeneralSubtree::Rfc822Name("b.example".to_owned())];
        assert_eq!(fault(&here, &[], "", &[mail]), Some(51));
        assert_eq!(fault(&here, &[], "", &[host("a.example")]), None);
    }
}
