//! Lists of revoked certificates.

use super::cert::{Certificate, PublicKey};
use super::der::{self, DerReader, DerValue};

/// A revocation list's fields; each borrows from its bytes.
#[derive(Debug, Clone)]
pub struct RevocationList<'a> {
    tbs: &'a [u8],
    /// The contents of the issuer's name.
    pub issuer: &'a [u8],
    /// Seconds since 1970; the list is of no use before.
    pub this_update: i64,
    /// Seconds since 1970; the list is of no use after.
    pub next_update: Option<i64>,
    /// A critical extension is there, such as one that makes the list a partial one.
    pub unknown_critical: bool,
    revoked: Option<DerReader<'a>>,
    algorithm: &'a [u8],
    signature: &'a [u8],
}

impl<'a> RevocationList<'a> {
    /// Reads a list.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut outer = DerReader::new(bytes).expect(der::SEQUENCE)?.inner();
        let tbs = outer.expect(der::SEQUENCE)?;
        let algorithm = outer.expect(der::SEQUENCE)?.body;
        let signature = outer.expect(der::BIT_STRING)?.bits()?;
        let mut fields = tbs.inner();
        fields.optional(der::INTEGER);
        if fields.expect(der::SEQUENCE)?.body != algorithm {
            return None;
        }
        let issuer = fields.expect(der::SEQUENCE)?.body;
        let this_update = der::time(&fields.next()?)?;
        let (mut next_update, mut revoked, mut unknown_critical) = (None, None, false);
        fields.each(|field| {
            match field.tag {
                0x17 | 0x18 => next_update = Some(der::time(&field)?),
                der::SEQUENCE => revoked = Some(field.inner()),
                0xa0 => unknown_critical = has_critical(field.inner())?,
                _ => {}
            }
            Some(())
        })?;
        Some(RevocationList {
            tbs: tbs.whole,
            issuer,
            this_update,
            next_update,
            unknown_critical,
            revoked,
            algorithm,
            signature,
        })
    }

    /// Whether each entry can be read. Takes as long as the list is: asked once, when the list is loaded.
    pub fn is_whole(&self) -> bool {
        let serial = |entry: DerValue<'_>| entry.inner().expect(der::INTEGER).map(drop);
        self.revoked.is_none_or(|entries| entries.each(serial).is_some())
    }

    /// Whether this key signed the list.
    pub fn signed_by(&self, key: &PublicKey<'_>) -> bool {
        super::signature::verify(key, self.algorithm, self.tbs, self.signature)
    }

    /// Whether the list names this certificate.
    pub fn revokes(&self, certificate: &Certificate<'_>) -> bool {
        let Some(mut entries) = self.revoked else { return false };
        entries
            .by_ref()
            .filter_map(|entry| entry.inner().expect(der::INTEGER))
            .any(|serial| serial.body == certificate.serial)
    }
}

fn has_critical(mut tagged: DerReader<'_>) -> Option<bool> {
    let mut critical = false;
    tagged.expect(der::SEQUENCE)?.inner().each(|extension| {
        let mut parts = extension.inner();
        parts.expect(der::OID)?;
        critical |= parts.optional(0x01).is_some_and(|v| v.body != [0]);
        Some(())
    })?;
    Some(critical)
}
