// SPDX-License-Identifier: Apache-2.0
//! Tools of Anthropic that the client executes. A request names their version, and their input schema is published.

use crate::api::body::invalid;
use crate::chat::RequestError;
use crate::json::Value;

/// The families of these tools: the beginnings of their types, before the date of the version.
const FAMILIES: [&str; 4] = ["bash_", "text_editor_", "memory_", "computer_"];

/// A published version of a tool.
#[derive(Debug)]
struct ClientTool {
    /// The values of `type` that have this input.
    kinds: &'static [&'static str],
    name: &'static str,
    description: &'static str,
    /// The members of the input.
    input: &'static [Member],
    /// The members that each input has.
    required: &'static [&'static str],
}

/// The name and the JSON schema of a member of an input.
type Member = (&'static str, &'static str);

const PATH: Member = ("path", r#"{"type": "string", "description": "Absolute path of the file or directory."}"#);

const FILE_TEXT: Member = ("file_text", r#"{"type": "string", "description": "create: the content of the new file."}"#);

const OLD_STR: Member = (
    "old_str",
    r#"{"type": "string", "description": "str_replace: the text to replace, which must occur exactly once, white space included."}"#,
);

const NEW_STR: Member =
    ("new_str", r#"{"type": "string", "description": "str_replace: the text that takes the place of old_str."}"#);

const NEW_STR_TO_INSERT: Member = (
    "new_str",
    r#"{"type": "string", "description": "str_replace: the text that takes the place of old_str. insert: the text to insert."}"#,
);

const INSERT_LINE: Member = (
    "insert_line",
    r#"{"type": "integer", "description": "insert: the number of the line after which the text is inserted; 0 is the beginning of the file."}"#,
);

const INSERT_TEXT: Member = ("insert_text", r#"{"type": "string", "description": "insert: the text to insert."}"#);

const VIEW_RANGE: Member = (
    "view_range",
    r#"{"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2, "description": "view: the first and the last line of a file to show, counted from 1; -1 is the end of the file."}"#,
);

const COORDINATE: Member = (
    "coordinate",
    r#"{"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2, "description": "x and y of the position in pixels, from the left and from the top."}"#,
);

const START_COORDINATE: Member = (
    "start_coordinate",
    r#"{"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2, "description": "left_click_drag: x and y of the position at which the drag begins."}"#,
);

const KEYS_OR_TEXT: Member = (
    "text",
    r#"{"type": "string", "description": "type: the text to type. key, hold_key: the keys, such as Return or ctrl+s. Clicks and scroll: a key that is held meanwhile."}"#,
);

const DURATION: Member =
    ("duration", r#"{"type": "number", "description": "hold_key, wait: the duration in seconds."}"#);

const SCROLL_DIRECTION: Member = ("scroll_direction", r#"{"type": "string", "enum": ["up", "down", "left", "right"]}"#);

const SCROLL_AMOUNT: Member =
    ("scroll_amount", r#"{"type": "integer", "description": "scroll: the number of steps."}"#);

const EDITOR: &str = "Shows, creates and edits text files. view shows a file with line numbers, or lists a directory. create writes a new file. str_replace replaces a text that occurs once in a file. insert adds text after a line.";

const COMPUTER: &str = "Controls the screen, the mouse and the keyboard of a computer. screenshot shows the screen. Take one before clicking, to see where the pointer must go, and after an action, to see its effect.";

/// The published versions.
const TOOLS: [ClientTool; 8] = [
    ClientTool {
        kinds: &["bash_20241022", "bash_20250124"],
        name: "bash",
        description: "Runs commands in a bash shell that keeps its working directory, its variables and its processes between calls. Returns what a command writes.",
        input: &[
            ("command", r#"{"type": "string", "description": "The command. Required unless restart is true."}"#),
            ("restart", r#"{"type": "boolean", "description": "true starts a new shell and runs no command."}"#),
        ],
        required: &[],
    },
    ClientTool {
        kinds: &["text_editor_20241022", "text_editor_20250124"],
        name: "str_replace_editor",
        description: "Shows, creates and edits text files. view shows a file with line numbers, or lists a directory. create writes a new file. str_replace replaces a text that occurs once in a file. insert adds text after a line. undo_edit takes back the last edit of a file.",
        input: &[
            ("command", r#"{"type": "string", "enum": ["view", "create", "str_replace", "insert", "undo_edit"]}"#),
            PATH,
            FILE_TEXT,
            OLD_STR,
            NEW_STR_TO_INSERT,
            INSERT_LINE,
            VIEW_RANGE,
        ],
        required: &["command", "path"],
    },
    ClientTool {
        kinds: &["text_editor_20250429"],
        name: "str_replace_based_edit_tool",
        description: EDITOR,
        input: &[
            ("command", r#"{"type": "string", "enum": ["view", "create", "str_replace", "insert"]}"#),
            PATH,
            FILE_TEXT,
            OLD_STR,
            NEW_STR_TO_INSERT,
            INSERT_LINE,
            VIEW_RANGE,
        ],
        required: &["command", "path"],
    },
    ClientTool {
        kinds: &["text_editor_20250728"],
        name: "str_replace_based_edit_tool",
        description: EDITOR,
        input: &[
            ("command", r#"{"type": "string", "enum": ["view", "create", "str_replace", "insert"]}"#),
            PATH,
            FILE_TEXT,
            OLD_STR,
            NEW_STR,
            INSERT_LINE,
            INSERT_TEXT,
            VIEW_RANGE,
        ],
        required: &["command", "path"],
    },
    ClientTool {
        kinds: &["memory_20250818"],
        name: "memory",
        description: "Keeps notes in files below /memories, which later conversations can read. view shows a file or lists a directory; begin with /memories. create writes a file. str_replace replaces a text that occurs once in a file. insert adds text after a line. delete removes a file or directory. rename moves one.",
        input: &[
            (
                "command",
                r#"{"type": "string", "enum": ["view", "create", "str_replace", "insert", "delete", "rename"]}"#,
            ),
            (
                "path",
                r#"{"type": "string", "description": "All commands except rename: the path, which begins with /memories."}"#,
            ),
            FILE_TEXT,
            OLD_STR,
            NEW_STR,
            INSERT_LINE,
            INSERT_TEXT,
            VIEW_RANGE,
            ("old_path", r#"{"type": "string", "description": "rename: the present path."}"#),
            ("new_path", r#"{"type": "string", "description": "rename: the new path."}"#),
        ],
        required: &["command"],
    },
    ClientTool {
        kinds: &["computer_20241022"],
        name: "computer",
        description: COMPUTER,
        input: &[
            (
                "action",
                r#"{"type": "string", "enum": ["key", "type", "mouse_move", "left_click", "left_click_drag", "right_click", "middle_click", "double_click", "screenshot", "cursor_position"]}"#,
            ),
            COORDINATE,
            (
                "text",
                r#"{"type": "string", "description": "type: the text to type. key: the keys, such as Return or ctrl+s."}"#,
            ),
        ],
        required: &["action"],
    },
    ClientTool {
        kinds: &["computer_20250124"],
        name: "computer",
        description: COMPUTER,
        input: &[
            (
                "action",
                r#"{"type": "string", "enum": ["key", "hold_key", "type", "cursor_position", "mouse_move", "left_mouse_down", "left_mouse_up", "left_click", "left_click_drag", "right_click", "middle_click", "double_click", "triple_click", "scroll", "wait", "screenshot"]}"#,
            ),
            COORDINATE,
            START_COORDINATE,
            KEYS_OR_TEXT,
            DURATION,
            SCROLL_DIRECTION,
            SCROLL_AMOUNT,
        ],
        required: &["action"],
    },
    ClientTool {
        kinds: &["computer_20251124"],
        name: "computer",
        description: COMPUTER,
        input: &[
            (
                "action",
                r#"{"type": "string", "enum": ["key", "hold_key", "type", "cursor_position", "mouse_move", "left_mouse_down", "left_mouse_up", "left_click", "left_click_drag", "right_click", "middle_click", "double_click", "triple_click", "scroll", "wait", "screenshot", "zoom"]}"#,
            ),
            COORDINATE,
            START_COORDINATE,
            KEYS_OR_TEXT,
            DURATION,
            SCROLL_DIRECTION,
            SCROLL_AMOUNT,
            (
                "region",
                r#"{"type": "array", "items": {"type": "integer"}, "minItems": 4, "maxItems": 4, "description": "zoom: x and y of the upper left corner and of the lower right corner of the part of the screen to show enlarged."}"#,
            ),
        ],
        required: &["action"],
    },
];

/// The tool with its name, its description and its input schema; `None` if `kind`, its type, is not that of a tool that the client executes.
///
/// # Errors
/// [`RequestError::Invalid`] if the version is unknown. Without its schema, the model could not call the tool.
pub(super) fn with_schema(tool: &Value, kind: &str, at: usize) -> Result<Option<Value>, RequestError> {
    if !FAMILIES.iter().any(|family| kind.starts_with(family)) {
        return Ok(None);
    }
    let allows_zoom = tool.get("enable_zoom") == Some(&Value::Bool(true));
    // the versions differ in zoom only
    let known = if kind == "computer_20251124" && !allows_zoom { "computer_20250124" } else { kind };
    let Some(known) = TOOLS.iter().find(|tool| tool.kinds.contains(&known)) else {
        return Err(invalid(format!(
            "tools.{at}.type: tokentap does not know the input of {kind:?}, which the client executes; send the tool with an input_schema"
        )));
    };
    let display = |name: &str| match tool.get(name) {
        Some(Value::Number(pixels)) => Some(pixels.clone()),
        _ => None,
    };
    let display = display("display_width_px").zip(display("display_height_px"));
    let display =
        display.map(|(width, height)| format!(" The screen is {width} pixels wide and {height} pixels high."));
    let description = format!("{}{}", known.description, display.unwrap_or_default());
    let name = tool.get_str("name").filter(|name| !name.is_empty()).unwrap_or(known.name);
    Ok(Some(Value::object([
        ("name", name.into()),
        ("description", description.into()),
        ("input_schema", known.schema()),
    ])))
}

impl ClientTool {
    /// The JSON schema of the input.
    fn schema(&self) -> Value {
        let member = |(name, schema): &Member| {
            (*name, Value::parse(schema.as_bytes()).expect("a test parses the schemas of all members"))
        };
        let required = self.required.iter().map(|name| (*name).into()).collect::<Vec<Value>>();
        Value::object([
            ("type", "object".into()),
            ("properties", Value::object(self.input.iter().map(member))),
            ("required", required.into()),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schema_of_each_version_has_its_required_members() {
        for tool in &TOOLS {
            let schema = tool.schema();
            let properties = schema.get("properties").unwrap();
            for name in tool.required {
                assert!(properties.get(name).is_some(), "{}: {name}", tool.kinds[0]);
            }
        }
    }
}
