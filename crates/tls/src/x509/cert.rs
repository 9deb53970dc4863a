//! One certificate, read as far as checking and showing it needs.

use super::der::{self, Reader, Value};

/// A certificate's fields; each borrows from its bytes.
#[derive(Debug, Clone)]
pub struct Certificate<'a> {
    /// All of it.
    pub der: &'a [u8],
    /// What is signed.
    pub tbs: &'a [u8],
    /// 1 or 3.
    pub version: u8,
    /// The serial number's bytes.
    pub serial: &'a [u8],
    /// The contents of the issuer's name.
    pub issuer: &'a [u8],
    /// Seconds since 1970.
    pub not_before: i64,
    /// Seconds since 1970.
    pub not_after: i64,
    /// The contents of the subject's name.
    pub subject: &'a [u8],
    /// The key, with its algorithm.
    pub key: PublicKey<'a>,
    /// Who may do what with it.
    pub extensions: Extensions<'a>,
    /// The contents of the signature's algorithm.
    pub algorithm: &'a [u8],
    /// The signature.
    pub signature: &'a [u8],
}

/// A public key.
#[derive(Debug, Clone, Copy)]
pub struct PublicKey<'a> {
    /// The contents of its algorithm.
    pub algorithm: &'a [u8],
    /// The key itself.
    pub key: &'a [u8],
}

/// The extensions that have a say in who is trusted.
#[derive(Debug, Clone, Default)]
pub struct Extensions<'a> {
    /// Basic constraints: whether it is an authority, and how many may stand below it.
    pub constraints: Option<(bool, Option<u32>)>,
    /// Key usage, the first byte of the bits.
    pub usage: Option<u8>,
    /// Extended key usage: the list of purposes.
    pub purposes: Option<Reader<'a>>,
    /// Other names of the subject.
    pub alt_names: Option<Reader<'a>>,
    /// Name constraints are there.
    pub name_constraints: bool,
    /// A critical extension that is not understood here.
    pub unknown_critical: bool,
    /// Where an OCSP responder is said to be.
    pub ocsp: Option<&'a [u8]>,
}

/// `keyCertSign`
pub const SIGNS_CERTIFICATES: u8 = 0x04;
/// `cRLSign`
pub const SIGNS_LISTS: u8 = 0x02;

impl<'a> Certificate<'a> {
    /// Reads a certificate.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let whole = Reader::new(bytes).expect(der::SEQUENCE)?;
        let mut outer = whole.inner();
        let tbs = outer.expect(der::SEQUENCE)?;
        let algorithm = outer.expect(der::SEQUENCE)?.body;
        let signature = outer.expect(der::BIT_STRING)?.bits()?;
        let mut fields = tbs.inner();
        let version = match fields.optional(0xa0) {
            None => 1,
            Some(v) => v.inner().expect(der::INTEGER)?.body.first()? + 1,
        };
        let serial = fields.expect(der::INTEGER)?.body;
        if fields.expect(der::SEQUENCE)?.body != algorithm {
            return None;
        }
        let issuer = fields.expect(der::SEQUENCE)?.body;
        let mut validity = fields.expect(der::SEQUENCE)?.inner();
        let (not_before, not_after) =
            (der::time(&validity.next()?)?, der::time(&validity.next()?)?);
        let subject = fields.expect(der::SEQUENCE)?.body;
        let key = PublicKey::parse(fields.expect(der::SEQUENCE)?)?;
        let mut extensions = Extensions::default();
        for field in fields {
            if field.tag == 0xa3 {
                extensions.read(field.inner().expect(der::SEQUENCE)?.inner())?;
            }
        }
        Some(Certificate {
            der: whole.whole,
            tbs: tbs.whole,
            version,
            serial,
            issuer,
            not_before,
            not_after,
            subject,
            key,
            extensions,
            algorithm,
            signature,
        })
    }

    /// Issuer and subject are one.
    pub fn self_issued(&self) -> bool {
        self.issuer == self.subject
    }

    /// Whether it may issue others, by OpenSSL's rules: a root of version 1 may, too.
    pub fn is_authority(&self) -> bool {
        let may_sign = self.extensions.usage.is_none_or(|bits| bits & SIGNS_CERTIFICATES != 0);
        may_sign
            && match self.extensions.constraints {
                Some((authority, _)) => authority,
                None => self.version == 1 && self.self_issued(),
            }
    }

    /// Whether it may be used for this purpose, as far as it says.
    pub fn serves(&self, purpose: &[u8]) -> bool {
        const ANY: &[u8] = &[0x55, 0x1d, 0x25, 0];
        let Some(mut list) = self.extensions.purposes else { return true };
        list.any(|p| p.body == purpose || p.body == ANY)
    }

    /// Names of hosts among the other names of the subject.
    pub fn dns_names(&self) -> impl Iterator<Item = &'a [u8]> {
        let names = self.extensions.alt_names.unwrap_or(Reader::new(&[]));
        names.filter(|v| v.tag == 0x82).map(|v| v.body)
    }

    /// The serial number as `$ssl_client_serial` shows it.
    pub fn serial_hex(&self) -> String {
        let digits = match self.serial {
            [0, rest @ ..] if !rest.is_empty() => rest,
            all => all,
        };
        digits.iter().map(|b| format!("{b:02X}")).collect()
    }
}

impl<'a> PublicKey<'a> {
    fn parse(info: Value<'a>) -> Option<Self> {
        let mut inner = info.inner();
        let algorithm = inner.expect(der::SEQUENCE)?.body;
        Some(PublicKey { algorithm, key: inner.expect(der::BIT_STRING)?.bits()? })
    }
}

impl<'a> Extensions<'a> {
    fn read(&mut self, list: Reader<'a>) -> Option<()> {
        for extension in list {
            let mut parts = extension.inner();
            let oid = parts.expect(der::OID)?.body;
            let critical = parts.optional(0x01).is_some_and(|v| v.body != [0]);
            let value = Reader::new(parts.expect(der::OCTET_STRING)?.body);
            self.one(oid, critical, value)?;
        }
        Some(())
    }

    fn one(&mut self, oid: &[u8], critical: bool, mut value: Reader<'a>) -> Option<()> {
        const OCSP: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 0x30, 1];
        match oid {
            [0x55, 0x1d, 19] => {
                let mut inner = value.expect(der::SEQUENCE)?.inner();
                let authority = inner.optional(0x01).is_some_and(|v| v.body != [0]);
                let length =
                    match inner.optional(der::INTEGER) {
                        Some(v) => Some(v.body.iter().try_fold(0u32, |n, b| {
                            n.checked_mul(256).map(|n| n | u32::from(*b))
                        })?),
                        None => None,
                    };
                self.constraints = Some((authority, length));
            }
            [0x55, 0x1d, 15] => {
                let bits = value.expect(der::BIT_STRING)?.body;
                self.usage = Some(bits.get(1).copied().unwrap_or(0));
            }
            [0x55, 0x1d, 37] => self.purposes = Some(value.expect(der::SEQUENCE)?.inner()),
            [0x55, 0x1d, 17] => self.alt_names = Some(value.expect(der::SEQUENCE)?.inner()),
            [0x55, 0x1d, 30] => self.name_constraints = true,
            // Policies do not decide, unless somebody asks for them.
            [0x55, 0x1d, 32 | 33 | 36 | 54] => {}
            [0x2b, 6, 1, 5, 5, 7, 1, 1] => {
                let mut list = value.expect(der::SEQUENCE)?.inner();
                while let Some(mut one) = list.next().map(|v| v.inner()) {
                    let method = one.expect(der::OID)?.body;
                    let place = one.next()?;
                    if method == OCSP && place.tag == 0x86 && self.ocsp.is_none() {
                        self.ocsp = Some(place.body);
                    }
                }
            }
            _ => self.unknown_critical |= critical,
        }
        Some(())
    }
}
