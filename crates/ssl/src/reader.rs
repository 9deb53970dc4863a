//! Reads a directive of TLS.

use weir_conf::{Directive as Line, Error, Spot};
use weir_values::{Inputs, Reading, Subject, Template, Variables};

use crate::files::KeyFiles;
use crate::ocsp::Stapling;

/// What a directive of TLS adds to while it is read.
pub struct SslReader<'r, 'i, S> {
    /// From outside.
    pub inputs: Inputs<'i>,
    /// All variables, defined and referred to.
    pub variables: &'r mut Variables<S>,
    /// What was noticed that does not stop the start.
    pub warnings: &'r mut Vec<Error>,
    /// Certificates and keys, each read once.
    pub files: &'r mut KeyFiles,
    /// Responses that are fetched to be sent along with certificates.
    pub staplings: &'r mut Vec<Stapling>,
}

impl<S: Subject> SslReader<'_, '_, S> {
    /// The same for values with variables.
    pub fn reading(&mut self) -> Reading<'_, S> {
        Reading { variables: self.variables, warnings: self.warnings }
    }
}

/// A line, and whether its block uses the directive for the first time.
#[derive(Clone, Copy)]
pub struct DirectiveUse<'l> {
    /// The line.
    pub line: &'l Line,
    /// An inherited list is dropped now.
    pub first: bool,
}

impl DirectiveUse<'_> {
    /// For directives that may stand once in a block: nginx's `is duplicate`.
    pub fn once(&self) -> Result<(), Error> {
        match self.first {
            true => Ok(()),
            false => Err(self.line.problem("is duplicate")),
        }
    }

    /// Stands once in a block, and is read into one place.
    pub fn set<T>(
        &self,
        place: &mut T,
        read: impl FnOnce(&Line) -> Result<T, Error>,
    ) -> Result<(), Error> {
        self.once()?;
        *place = read(self.line)?;
        Ok(())
    }

    /// Adds to a list, which begins anew in each block.
    pub fn add<T>(&self, list: &mut Vec<T>, more: Option<T>) -> Result<(), Error> {
        if self.first {
            list.clear();
        }
        list.extend(more);
        Ok(())
    }
}

/// Reads one use of a directive into the settings `C`.
pub type SetDirective<S, C> =
    fn(&mut C, DirectiveUse<'_>, &mut SslReader<'_, '_, S>) -> Result<(), Error>;

/// A directive.
pub struct SslDirective<S, C> {
    /// As written in a configuration.
    pub name: &'static str,
    /// One sentence for docs/directives.md.
    pub help: &'static str,
    /// How it is read.
    pub set: SetDirective<S, C>,
}

impl<S, C> SslDirective<S, C> {
    /// Reads a line by the row of its name.
    pub fn read(
        rows: &[SslDirective<S, C>],
        conf: &mut C,
        said: DirectiveUse<'_>,
        reader: &mut SslReader<'_, '_, S>,
    ) -> Result<(), Error> {
        let row = rows.iter().find(|row| said.line.name.is(row.name));
        row.map_or(Ok(()), |row| (row.set)(conf, said, reader))
    }
}

/// A file that a directive names.
#[derive(Debug, Clone)]
pub struct NamedFile {
    /// As written.
    pub name: Vec<u8>,
    /// For error messages.
    pub at: Spot,
}

impl NamedFile {
    /// The name, which may hold variables.
    pub fn template<S: Subject>(&self, variables: &mut Variables<S>) -> Result<Template, Error> {
        Template::new(variables, &self.name).map_err(|text| self.at.error(text))
    }
}
