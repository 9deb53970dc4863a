//! `..._store`, for all protocols.

use weir_conf::{Directive, Error};
use weir_values::Template;

use crate::config::scope::Scope;

/// The files that answers are written to.
#[derive(Debug, Clone)]
pub enum Store {
    /// The file of the request's path (`on`).
    AsRequested,
    /// The file that the value names.
    To(Template),
}

impl Store {
    /// `..._store on | off | PATH`
    pub fn read(s: &mut Scope<'_, '_>, d: &Directive) -> Result<Option<Store>, Error> {
        let Some(word) = d.args.first() else { return Ok(None) };
        Ok(match word.bytes.as_slice() {
            b"" => return Err(d.error_at(word, "empty path")),
            b"off" => None,
            b"on" => Some(Store::AsRequested),
            _ => Some(Store::To(s.setup.template(d, word)?)),
        })
    }
}
