//! What a location says of storing answers, whatever the protocol.

use weir_conf::{Directive, Error};
use weir_values::Template;

use crate::config::scope::Scope;

/// Where answers go.
#[derive(Debug, Clone)]
pub enum Store {
    /// To the file that the request's path stands for.
    AsRequested,
    /// To the file that this says.
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
