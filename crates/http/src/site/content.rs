//! The content handler of a location: what answers there, with all that it needs to know.
//!
//! Handler and settings are one value. A block takes both from the block around it or none, so that no handler runs with
//! the settings of a block that did not name it. What holds for other handlers too (timeouts, `proxy_set_header`) is
//! inherited as settings of the modules.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use crate::request::Request;
use crate::request::step::Answer;
use crate::site::location::Kind;

/// The settings that are in force do not name the handler that is to answer.
#[derive(Debug, PartialEq, Eq)]
pub struct LacksSettings;

/// A handler that a directive names, declared once by its module; `T` is what the directive says.
pub struct ContentHandler<T: 'static> {
    /// nginx's name of the module, without `ngx_http_` and `_module`.
    pub module: &'static str,
    /// `limit_except` keeps the handler of the location around it. Those that nginx keeps there and weir's own do; with the
    /// others a request of a limited method is for the files of the location.
    pub in_limit_except: bool,
    /// Where a later `if` does not name it, the request is for the files of the location.
    pub optional: bool,
    /// Answers a request.
    pub run: for<'a> fn(&'a mut Request, &'static T) -> Answer<'a>,
}

impl<T: Clone + Debug + Send + Sync + 'static> ContentHandler<T> {
    /// The handler with these settings.
    pub fn with(&'static self, settings: T) -> Content {
        Content(Arc::new(Named { handler: self, settings }))
    }

    /// What the directive of this handler says, where it is the one that answers.
    pub fn of<'a>(&'static self, content: &'a Option<Content>) -> Option<&'a T> {
        let named: &dyn Any = &*content.as_ref()?.0;
        let named: &Named<T> = named.downcast_ref()?;
        std::ptr::eq(named.handler, self).then_some(&named.settings)
    }

    /// The same, to be changed.
    pub fn change<'a>(&'static self, content: &'a mut Option<Content>) -> Option<&'a mut T> {
        let settings = self.of(content)?;
        if Arc::strong_count(&content.as_ref()?.0) > 1 {
            *content = Some(self.with(settings.clone()));
        }
        let named: &mut dyn Any = Arc::get_mut(&mut content.as_mut()?.0)?;
        let named: &mut Named<T> = named.downcast_mut()?;
        Some(&mut named.settings)
    }
}

/// A handler, and what its directive says.
struct Named<T: 'static> {
    handler: &'static ContentHandler<T>,
    settings: T,
}

trait Answers: Any + Send + Sync {
    fn module(&self) -> &'static str;
    fn in_limit_except(&self) -> bool;
    fn optional(&self) -> bool;
    /// Where the declaration stands, by which two handlers are told apart.
    fn identity(&self) -> usize;
    fn answer<'a>(&'static self, r: &'a mut Request) -> Answer<'a>;
}

impl<T: Send + Sync + 'static> Answers for Named<T> {
    fn module(&self) -> &'static str {
        self.handler.module
    }

    fn in_limit_except(&self) -> bool {
        self.handler.in_limit_except
    }

    fn optional(&self) -> bool {
        self.handler.optional
    }

    fn identity(&self) -> usize {
        std::ptr::from_ref(self.handler).addr()
    }

    fn answer<'a>(&'static self, r: &'a mut Request) -> Answer<'a> {
        (self.handler.run)(r, &self.settings)
    }
}

/// The content handler that a block names.
#[derive(Clone)]
pub struct Content(Arc<dyn Answers>);

impl Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Content").field(&self.0.module()).finish()
    }
}

impl Content {
    /// Whether a block of this kind keeps the handler of the block around it: `if` does, `limit_except` for some. A location
    /// inside names its own handler.
    pub fn is_kept_in(&self, block: &Kind) -> bool {
        match block {
            Kind::If => true,
            Kind::LimitExcept => self.0.in_limit_except(),
            Kind::Server | Kind::Exact | Kind::Prefix { .. } | Kind::Regex(_) | Kind::Named => {
                false
            }
        }
    }

    /// What answers behind several `if`s that hold. As in nginx, the last one that names a handler
    /// decides the handler. The last one of all, with the handler `own`, decides its settings. So a
    /// handler answers only where both name the same directive. `echo` and Lua leave the request to
    /// the files without an act or a script.
    pub fn after_ifs<'a>(
        chosen: Option<&'a Content>,
        own: Option<&'a Content>,
    ) -> Result<Option<&'a Content>, LacksSettings> {
        let Some(chosen) = chosen else { return Ok(own) };
        if own.is_some_and(|own| own.0.identity() == chosen.0.identity()) {
            return Ok(own);
        }
        match chosen.0.optional() {
            true => Ok(None),
            false => Err(LacksSettings),
        }
    }

    /// The module that the handler belongs to.
    pub fn module(&self) -> &'static str {
        self.0.module()
    }

    /// Runs the handler.
    pub fn answer<'a>(&'static self, r: &'a mut Request) -> Answer<'a> {
        self.0.answer(r)
    }
}
