//! The content types that a module applies to: `ssi_types`, `sub_filter_types` and alike.

use std::collections::HashSet;
use std::sync::Arc;

use weir_conf::Directive;

use crate::config::scope::Scope;

/// A set of content types, or all types.
#[derive(Debug, Clone)]
pub struct Types {
    names: Arc<HashSet<Vec<u8>>>,
    all: bool,
}

impl Default for Types {
    /// nginx's default for most modules.
    fn default() -> Self {
        Types::of(&["text/html"])
    }
}

impl Types {
    /// These types.
    pub fn of(names: &[&str]) -> Types {
        let names = names.iter().map(|n| n.as_bytes().to_vec()).collect::<HashSet<_>>();
        Types { names: Arc::new(names), all: false }
    }

    /// Reads a line into the types of a block. They always include `text/html`, and none of the
    /// other defaults.
    pub fn read(&mut self, s: &mut Scope<'_, '_>, d: &Directive) {
        if s.first(d) {
            *self = Types::default();
        }
        for word in &d.args {
            if word.bytes == b"*" {
                self.all = true;
                continue;
            }
            let names = Arc::make_mut(&mut self.names);
            if !names.insert(word.bytes.to_ascii_lowercase()) {
                let text = format!("duplicate MIME type \"{}\"", word.lossy());
                s.setup.warnings.push(d.warning(text));
            }
        }
    }

    /// Whether the set has this type. As in nginx, a type with parameters does not match.
    pub fn matches(&self, content_type: &[u8]) -> bool {
        if self.all {
            return true;
        }
        if content_type.iter().any(u8::is_ascii_uppercase) {
            return self.names.contains(content_type.to_ascii_lowercase().as_slice());
        }
        self.names.contains(content_type)
    }
}

/// The content type without parameters.
pub fn without_parameters(content_type: &[u8]) -> &[u8] {
    content_type.split(|b| *b == b';').next().unwrap_or_default().trim_ascii()
}

/// A directive that sets the content types of a module.
macro_rules! types_setting {
    ($name:literal, $key:ident.$field:ident, $help:literal) => {
        $crate::config::scope::Directive {
            name: $name,
            help: $help,
            set: $crate::config::scope::Set::Simple(|s, d| {
                let mut types = $key.of(&s.location).$field.clone();
                types.read(s, d);
                $key.change(&mut s.location).$field = types;
                Ok(())
            }),
        }
    };
}
pub(crate) use types_setting;

#[cfg(test)]
mod tests {
    use super::Types;

    #[test]
    fn a_type_is_known_in_any_case_and_without_parameters() {
        let types = Types::default();
        assert!(types.matches(b"text/html"));
        assert!(types.matches(b"Text/HTML"));
        assert!(!types.matches(b"text/html; charset=utf-8"));
        assert!(!types.matches(b"text/plain"));
        assert!(!types.matches(b""));
    }

    #[test]
    fn lines_of_types_are_read() {
        assert_eq!(crate::trial::complaint("ssi_types text/plain TEXT/xml *;"), "");
    }
}
