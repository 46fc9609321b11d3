// SPDX-License-Identifier: Apache-2.0
//! Enums whose variants have names in replies, exports, logs and metrics.

/// Declares an enum whose variants have names: `ALL`, `name()`, and serde by name, or by place in a format without names (the log).
macro_rules! named_enum {
    ($(#[$about:meta])* $vis:vis enum $type:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        $vis enum $type {
            $($(#[$doc])* #[serde(rename = $name)] $variant,)+
        }

        impl $type {
            /// All variants, in the order of their declaration.
            #[allow(dead_code, reason = "some enums are never listed")]
            $vis const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// The name in replies, exports, logs and metrics.
            #[must_use]
            $vis const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}
pub(crate) use named_enum;
