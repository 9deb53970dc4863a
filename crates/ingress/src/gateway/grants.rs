//! References to other objects. Those to another namespace need a ReferenceGrant there.

use super::objects::{GROUP, Reference};
use crate::annotations::values;
use crate::translate::Work;

/// The object that has a reference.
#[derive(Clone, Copy)]
pub(super) struct Referrer<'a> {
    pub(super) kind: &'static str,
    pub(super) namespace: &'a str,
}

/// Why a reference cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Refused {
    pub(super) fn new(reason: &'static str, message: impl Into<String>) -> Refused {
        Refused { reason, message: message.into() }
    }
}

impl<'a> Work<'a> {
    /// The namespace, name and kind of a referenced object of the core group, if the referrer may
    /// use it.
    pub(super) fn referred(
        &self,
        from: Referrer<'_>,
        to: &Reference,
        kinds: &[&'static str],
        wrong_kind: &'static str,
    ) -> Result<(String, String, &'static str), Refused> {
        let group = to.group.as_deref().unwrap_or_default();
        let kind = to.kind.as_deref().unwrap_or(kinds.first().copied().unwrap_or_default());
        let known = kinds.iter().find(|known| **known == kind).filter(|_| group.is_empty());
        let Some(known) = known else {
            return Err(Refused::new(
                wrong_kind,
                format!("\"{group}/{kind}\" cannot be used here"),
            ));
        };
        let namespace = to.namespace.as_deref().unwrap_or(from.namespace);
        if !values::is_label(namespace) || !values::is_object_name(&to.name) {
            return Err(Refused::new(wrong_kind, "it has no name of an object"));
        }
        if namespace != from.namespace && !self.is_granted(from, namespace, known, &to.name) {
            let message = format!("no ReferenceGrant of {namespace} allows {known} {}", to.name);
            return Err(Refused::new("RefNotPermitted", message));
        }
        Ok((namespace.to_owned(), to.name.clone(), known))
    }

    fn is_granted(&self, from: Referrer<'_>, namespace: &str, kind: &str, name: &str) -> bool {
        let grants = self.gateway.grants.iter();
        let mut there = grants
            .filter(|grant| grant.metadata.namespace.as_deref().unwrap_or("default") == namespace);
        there.any(|grant| {
            let whose = grant.spec.from.iter().any(|one| {
                one.group == GROUP && one.kind == from.kind && one.namespace == from.namespace
            });
            let what = grant.spec.to.iter().any(|one| {
                one.group.is_empty()
                    && one.kind == kind
                    && one.name.as_ref().is_none_or(|one| one.is_empty() || one == name)
            });
            whose && what
        })
    }
}
