//! Reads the annotations of one Ingress: typed values, and a finding for each annotation that is
//! wrong or not obeyed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::str::FromStr;

use super::{PREFIX, State, aliases, state, values};
use crate::report::{Findings, ObjectId, Severity};

/// The annotations of an Ingress, with the controller's defaults.
pub struct Reader<'a> {
    object: &'a ObjectId,
    own: BTreeMap<&'a str, &'a str>,
    defaults: &'a BTreeMap<String, String>,
    findings: RefCell<&'a mut Findings>,
    asked: RefCell<Vec<&'static str>>,
}

impl<'a> Reader<'a> {
    /// Takes the annotations, and reports those that are not obeyed.
    pub fn new(
        object: &'a ObjectId,
        annotations: &'a BTreeMap<String, String>,
        defaults: &'a BTreeMap<String, String>,
        findings: &'a mut Findings,
    ) -> Reader<'a> {
        let mut own = BTreeMap::new();
        for (full, value) in annotations {
            let Some(name) = full.strip_prefix(PREFIX) else { continue };
            match state(name) {
                None => findings.add(
                    object,
                    Severity::Warning,
                    "UnknownAnnotation",
                    name,
                    "ingress-nginx knows no such annotation; it has no effect",
                ),
                Some(State::Built) => drop(own.insert(name, value.as_str())),
                Some(State::Alias(of)) => drop(own.entry(of).or_insert(value.as_str())),
                Some(State::Needless(why)) => {
                    findings.add(object, Severity::Note, "NeedlessAnnotation", name, why);
                }
                Some(State::Unbuilt(why)) => {
                    let message = format!("known, but not built into weir-ingress yet: {why}");
                    findings.add(object, Severity::Warning, "UnbuiltAnnotation", name, message);
                }
                Some(State::Gone(version)) => {
                    let message = format!("ingress-nginx lost it in v{version}; it has no effect");
                    findings.add(object, Severity::Warning, "GoneAnnotation", name, message);
                }
            }
        }
        let (findings, asked) = (RefCell::new(findings), RefCell::new(Vec::new()));
        Reader { object, own, defaults, findings, asked }
    }

    /// The names that were read.
    pub fn asked(&self) -> Vec<&'static str> {
        self.asked.borrow().clone()
    }

    /// The raw value of an annotation, if it is not empty.
    pub fn text(&self, name: &'static str) -> Option<&'a str> {
        self.asked.borrow_mut().push(name);
        let own = self.own.get(name).copied();
        let default = || {
            let other = |of: &&str| self.defaults.get(*of).map(String::as_str);
            self.defaults
                .get(name)
                .map(String::as_str)
                .or_else(|| aliases(name).iter().find_map(other))
        };
        // The ConfigMap's snippets are the administrator's own, and no defaults for Ingresses.
        let none = self.defaults.is_empty() || name.ends_with("-snippet");
        let default = || if none { None } else { default() };
        own.or_else(default).filter(|v| !v.trim().is_empty())
    }

    /// The value of a key of the ConfigMap, which no Ingress can set.
    pub fn of_administrator(&self, name: &str) -> Option<&'a str> {
        self.defaults.get(name).map(String::as_str).filter(|text| !text.trim().is_empty())
    }

    /// The annotations of the Ingress itself that weir obeys.
    pub(super) fn names(&self) -> impl Iterator<Item = &'a str> {
        self.own.iter().filter(|(_, value)| !value.trim().is_empty()).map(|(name, _)| *name)
    }

    /// Reports an annotation that has no effect without another one. It is a warning if the
    /// annotation is to restrict access.
    pub(super) fn ineffective(&self, name: &str, needed: &str) {
        let severity = if name.starts_with("auth-") { Severity::Warning } else { Severity::Note };
        let what = format!("it has no effect without {needed}, as in ingress-nginx");
        let mut findings = self.findings.borrow_mut();
        findings.add(self.object, severity, "IneffectiveAnnotation", name, what);
    }

    /// Reports a wrong value.
    pub fn wrong(&self, name: &str, why: impl std::fmt::Display) {
        let mut findings = self.findings.borrow_mut();
        findings.add(self.object, Severity::Error, "InvalidAnnotation", name, why);
    }

    /// A value that `read` parses. Its error is reported.
    pub fn read<T>(
        &self,
        name: &'static str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let text = self.text(name)?;
        let result = match text.len() > values::LONGEST {
            true => Err(format!("the value has more than {} bytes", values::LONGEST)),
            false => read(text.trim()),
        };
        result.map_err(|why| self.wrong(name, why)).ok()
    }

    /// A boolean, in the words that Go's `strconv.ParseBool` takes.
    pub fn flag(&self, name: &'static str) -> Option<bool> {
        self.read(name, |text| match text {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
            _ => Err("it must be \"true\" or \"false\"".to_owned()),
        })
    }

    /// One of these words.
    pub fn choice(&self, name: &'static str, words: &[&'static str]) -> Option<&'static str> {
        self.read(name, |text| {
            let found = words.iter().find(|word| word.eq_ignore_ascii_case(text)).copied();
            found.ok_or_else(|| format!("it must be one of {}", words.join(", ")))
        })
    }

    /// A whole number within bounds.
    pub fn number(&self, name: &'static str, least: u64, most: u64) -> Option<u64> {
        self.read(name, |text| {
            let number = u64::from_str(text).ok().filter(|n| (least..=most).contains(n));
            number.ok_or_else(|| format!("it must be a number from {least} to {most}"))
        })
    }

    /// A size with an optional unit, within bounds.
    pub fn size(&self, name: &'static str, least: u64, most: u64) -> Option<String> {
        self.read(name, |text| {
            let text = text.strip_suffix(['b', 'B']).unwrap_or(text);
            let size = values::size(text).filter(|size| (least..=most).contains(size));
            let size = size.ok_or_else(|| {
                format!("it must be a size, as in 8m, from {least} to {most} bytes")
            })?;
            Ok(size.to_string())
        })
    }

    /// A text of letters, digits and `signs`, without variables.
    pub fn plain(&self, name: &'static str, signs: &str) -> Option<String> {
        self.read(name, |text| match values::of(text, signs) {
            true => Ok(text.to_owned()),
            false => Err("it has characters that are not allowed here".to_owned()),
        })
    }

    /// A text of letters, digits and `signs`, in which `$` begins a variable.
    pub fn template(&self, name: &'static str, signs: &str) -> Option<String> {
        self.read(name, |text| {
            if !values::of(text, signs) && !values::of(text, &format!("{signs}${{}}")) {
                return Err("it has characters that are not allowed here".to_owned());
            }
            values::template(text)?;
            Ok(text.to_owned())
        })
    }
}
