// SPDX-License-Identifier: Apache-2.0
//! The macros: each makes its site a static that the linker collects.

/// A JSON object for a report: `details! { term: 3, leader: id }`. Values implement [`ToJson`](crate::ToJson).
#[macro_export]
macro_rules! details {
    ($($name:ident : $value:expr),* $(,)?) => {
        $crate::Details(&[$((stringify!($name), &$value as &dyn $crate::ToJson)),*])
    };
}

/// Registers a site and gives a reference to it.
#[doc(hidden)]
#[macro_export]
macro_rules! __site {
    ($kind:ident, $message:expr) => {
        $crate::__site!($kind, $message, "", "")
    };
    ($kind:ident, $message:expr, $namespace:expr, $key:expr) => {{
        static SITE: $crate::private::Site = $crate::private::Site::new(
            $crate::private::AssertionKind::$kind,
            $message,
            (env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION")),
            const { $crate::private::package_relative(file!(), env!("CARGO_MANIFEST_DIR")) },
            (line!(), column!()),
            module_path!(),
            const { $crate::private::stable($namespace, $key) },
        );
        #[$crate::private::linkme::distributed_slice($crate::private::SITES)]
        #[linkme(crate = $crate::private::linkme)]
        static REGISTERED: &$crate::private::Site = &SITE;
        &SITE
    }};
}

/// Evaluates a site. Details are made only for the evaluations that are reported.
#[doc(hidden)]
#[macro_export]
macro_rules! __evaluate {
    (($kind:ident, $namespace:expr, $key:expr), $pass:expr, $message:expr, $details:expr) => {{
        let site = $crate::__site!($kind, $message, $namespace, $key);
        let pass: bool = $pass;
        if $crate::private::needs_report(site, pass) {
            $crate::private::report(site, pass, &$details);
        }
    }};
    (($($identity:tt)*), $pass:expr, $message:expr) => {
        $crate::__evaluate!(($($identity)*), $pass, $message, "")
    };
    ($kind:ident, $pass:expr, $message:expr $(, $details:expr)?) => {
        $crate::__evaluate!(($kind, "", ""), $pass, $message $(, $details)?)
    };
}

/// [`assert_always!`] with an explicit identity: `assert_always_stable!("namespace", "key", condition, "message"[, details])`. The
/// identity stays when the code moves; of two different sites with one identity a run is refused.
#[macro_export]
macro_rules! assert_always_stable {
    ($namespace:expr, $key:expr, $condition:expr, $message:expr $(, $details:expr)? $(,)?) => {
        $crate::__evaluate!((Always, $namespace, $key), $condition, $message $(, $details)?)
    };
}

/// [`assert_always_or_unreachable!`] with an explicit identity, as [`assert_always_stable!`].
#[macro_export]
macro_rules! assert_always_or_unreachable_stable {
    ($namespace:expr, $key:expr, $condition:expr, $message:expr $(, $details:expr)? $(,)?) => {
        $crate::__evaluate!((AlwaysOrUnreachable, $namespace, $key), $condition, $message $(, $details)?)
    };
}

/// [`assert_sometimes!`] with an explicit identity, as [`assert_always_stable!`].
#[macro_export]
macro_rules! assert_sometimes_stable {
    ($namespace:expr, $key:expr, $condition:expr, $message:expr $(, $details:expr)? $(,)?) => {
        $crate::__evaluate!((Sometimes, $namespace, $key), $condition, $message $(, $details)?)
    };
}

/// [`assert_reachable!`] with an explicit identity, as [`assert_always_stable!`].
#[macro_export]
macro_rules! assert_reachable_stable {
    ($namespace:expr, $key:expr, $message:expr $(, $details:expr)? $(,)?) => {
        $crate::__evaluate!((Reachable, $namespace, $key), true, $message $(, $details)?)
    };
}

/// [`assert_unreachable!`] with an explicit identity, as [`assert_always_stable!`].
#[macro_export]
macro_rules! assert_unreachable_stable {
    ($namespace:expr, $key:expr, $message:expr $(, $details:expr)? $(,)?) => {
        $crate::__evaluate!((Unreachable, $namespace, $key), false, $message $(, $details)?)
    };
}

/// The condition holds at every evaluation, and is evaluated at least once: `assert_always!(condition, "message"[, details])`.
/// The message is a constant and names the property.
#[macro_export]
macro_rules! assert_always {
    ($condition:expr, $message:expr $(, $details:expr)? $(,)?) => {
        $crate::__evaluate!(Always, $condition, $message $(, $details)?)
    };
}

/// The condition holds at every evaluation, of which there may be none.
#[macro_export]
macro_rules! assert_always_or_unreachable {
    ($condition:expr, $message:expr $(, $details:expr)? $(,)?) => {
        $crate::__evaluate!(AlwaysOrUnreachable, $condition, $message $(, $details)?)
    };
}

/// The condition holds in at least one evaluation.
#[macro_export]
macro_rules! assert_sometimes {
    ($condition:expr, $message:expr $(, $details:expr)? $(,)?) => {
        $crate::__evaluate!(Sometimes, $condition, $message $(, $details)?)
    };
}

/// This place is reached at least once.
#[macro_export]
macro_rules! assert_reachable {
    ($message:expr $(, $details:expr)? $(,)?) => {
        $crate::__evaluate!(Reachable, true, $message $(, $details)?)
    };
}

/// This place is never reached.
#[macro_export]
macro_rules! assert_unreachable {
    ($message:expr $(, $details:expr)? $(,)?) => {
        $crate::__evaluate!(Unreachable, false, $message $(, $details)?)
    };
}

/// The first value that any node of the timeline reports for a key binds all nodes; another value is a violation:
/// `assert_agree!("leader of a term", term, leader)`. The namespace is a constant and names the property; the key and the
/// value are anything that implements [`AgreeValue`](crate::AgreeValue). Gives `Err` where key or value exceed their bounds.
#[macro_export]
macro_rules! assert_agree {
    ($namespace:expr, $key:expr, $value:expr $(,)?) => {{
        let site = $crate::__site!(Agree, $namespace);
        $crate::private::agree(site, &$key, &$value)
    }};
}

#[doc(hidden)]
#[macro_export]
macro_rules! __numeric {
    ($kind:ident, $maximize:expr, $left:expr, $operator:tt, $right:expr, $message:expr, $details:expr) => {{
        static CLOSEST: $crate::private::Closest = $crate::private::Closest::new($maximize);
        let (left, right) = ($left, $right);
        let site = $crate::__site!($kind, $message);
        let pass = left $operator right;
        if $crate::private::needs_report(site, pass) {
            $crate::private::report_numeric(site, pass, left, right, &$details);
        }
        $crate::private::guide(site, &CLOSEST, left, right);
    }};
    ($kind:ident, $maximize:expr, $left:expr, $operator:tt, $right:expr, $message:expr) => {
        $crate::__numeric!($kind, $maximize, $left, $operator, $right, $message, "")
    };
}

/// `left > right` at every evaluation; the explorer is told how close it came to failing.
#[macro_export]
macro_rules! assert_always_greater_than {
    ($left:expr, $right:expr, $message:expr $(, $details:expr)? $(,)?) => {
        $crate::__numeric!(Always, false, $left, >, $right, $message $(, $details)?)
    };
}

/// `left >= right` at every evaluation; the explorer is told how close it came to failing.
#[macro_export]
macro_rules! assert_always_greater_than_or_equal_to {
    ($left:expr, $right:expr, $message:expr $(, $details:expr)? $(,)?) => {
        $crate::__numeric!(Always, false, $left, >=, $right, $message $(, $details)?)
    };
}

/// `left < right` at every evaluation; the explorer is told how close it came to failing.
#[macro_export]
macro_rules! assert_always_less_than {
    ($left:expr, $right:expr, $message:expr $(, $details:expr)? $(,)?) => {
        $crate::__numeric!(Always, true, $left, <, $right, $message $(, $details)?)
    };
}

/// `left <= right` at every evaluation; the explorer is told how close it came to failing.
#[macro_export]
macro_rules! assert_always_less_than_or_equal_to {
    ($left:expr, $right:expr, $message:expr $(, $details:expr)? $(,)?) => {
        $crate::__numeric!(Always, true, $left, <=, $right, $message $(, $details)?)
    };
}

/// `left > right` in at least one evaluation; the explorer is told how close it came.
#[macro_export]
macro_rules! assert_sometimes_greater_than {
    ($left:expr, $right:expr, $message:expr $(, $details:expr)? $(,)?) => {
        $crate::__numeric!(Sometimes, true, $left, >, $right, $message $(, $details)?)
    };
}

/// `left >= right` in at least one evaluation; the explorer is told how close it came.
#[macro_export]
macro_rules! assert_sometimes_greater_than_or_equal_to {
    ($left:expr, $right:expr, $message:expr $(, $details:expr)? $(,)?) => {
        $crate::__numeric!(Sometimes, true, $left, >=, $right, $message $(, $details)?)
    };
}

/// `left < right` in at least one evaluation; the explorer is told how close it came.
#[macro_export]
macro_rules! assert_sometimes_less_than {
    ($left:expr, $right:expr, $message:expr $(, $details:expr)? $(,)?) => {
        $crate::__numeric!(Sometimes, false, $left, <, $right, $message $(, $details)?)
    };
}

/// `left <= right` in at least one evaluation; the explorer is told how close it came.
#[macro_export]
macro_rules! assert_sometimes_less_than_or_equal_to {
    ($left:expr, $right:expr, $message:expr $(, $details:expr)? $(,)?) => {
        $crate::__numeric!(Sometimes, false, $left, <=, $right, $message $(, $details)?)
    };
}

/// At every evaluation at least one of the named conditions holds: `assert_always_some!({ a: x, b: y }, "message")`.
/// The explorer is told how few held.
#[macro_export]
macro_rules! assert_always_some {
    ({ $($name:ident : $condition:expr),+ $(,)? }, $message:expr $(,)?) => {{
        $(let $name: bool = $condition;)+
        $crate::__numeric!(Always, false, [$($name),+].iter().filter(|held| **held).count() as u64, >, 0u64, $message,
            $crate::details! { $($name: $name),+ })
    }};
}

/// In at least one evaluation all the named conditions hold together: `assert_sometimes_all!({ a: x, b: y }, "message")`.
/// The explorer is told how many held.
#[macro_export]
macro_rules! assert_sometimes_all {
    ({ $($name:ident : $condition:expr),+ $(,)? }, $message:expr $(,)?) => {{
        $(let $name: bool = $condition;)+
        let all = [$($name),+];
        $crate::__numeric!(Sometimes, true, all.iter().filter(|held| **held).count() as u64, >=, all.len() as u64, $message,
            $crate::details! { $($name: $name),+ })
    }};
}
