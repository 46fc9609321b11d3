// SPDX-License-Identifier: Apache-2.0
//! Calls in the four formats that strands-sglang has parsers for. The expected calls are those of its parsers, except for arguments that are
//! not an object, the key `parameters` and markers in strings.

use super::*;

#[test]
fn hermes_blocks_are_parsed() {
    let table: &[(&str, ToolCall)] = &[
        (r#"{"name": "f", "arguments": {"a": 1}}"#, call("f", r#"{"a": 1}"#)),
        ("\n {\"name\":\"f\",\"arguments\":{\"a\":[1,2],\"b\":{}}}\x1f\n", call("f", r#"{"a": [1, 2], "b": {}}"#)),
        (r#"{"arguments": {"city": "Zürich 🏔"}, "name": "f"}"#, call("f", r#"{"city": "Z\u00fcrich \ud83c\udfd4"}"#)),
        // missing arguments and null count as no arguments
        (r#"{"name": "f"}"#, call("f", "{}")),
        (r#"{"name": "f", "arguments": null}"#, call("f", "{}")),
        // a string that contains an object
        (r#"{"name": "f", "arguments": "{\"a\": \"\u00fc\"}"}"#, call("f", r#"{"a": "\u00fc"}"#)),
        (r#"{"arguments": " {\"a\":1} ", "name": "f"}"#, call("f", r#"{"a": 1}"#)),
        // arguments that are not an object
        (r#"{"name": "f", "arguments": [1]}"#, error("f", "[1]")),
        (r#"{"name": "f", "arguments": 3}"#, error("f", "3")),
        (r#"{"name": "f", "arguments": "a"}"#, error("f", r#""a""#)),
        (r#"{"name": "f", "arguments": "[1]"}"#, error("f", r#""[1]""#)),
        // the other key
        (r#"{"name": "f", "parameters": {"a": 1}}"#, call("f", r#"{"a": 1}"#)),
        (r#"{"parameters": {"a": 1}, "name": "f"}"#, call("f", r#"{"a": 1}"#)),
        // both keys
        (r#"{"name": "f", "arguments": { }, "parameters": {"q": {}}}"#, call("f", r#"{"q": {}}"#)),
        (r#"{"name": "f", "arguments": {}, "parameters": null, "arguments": {"q": 1}}"#, call("f", r#"{"q": 1}"#)),
        (r#"{"parameters": {"q": 1}, "name": "f", "arguments": {}}"#, call("f", r#"{"q": 1}"#)),
        (r#"{"name": "f", "arguments": {}, "parameters": [1]}"#, error("f", r#"{}, "parameters": [1]}"#)),
        (r#"{"name": "f", "arguments": {"q": 1}, "parameters": "#, error("f", r#"{"q": 1}, "parameters":"#)),
        (
            r#"{"name": "f", "arguments": {"q": 1}, "parameters": {}, "arguments": {"b": 2}}"#,
            error("f", r#"{"q": 1}, "parameters": {}, "arguments": {"b": 2}}"#),
        ),
        // markers in strings
        (r#"{"name": "f", "arguments": {"a": "x </tool_call> y"}}"#, call("f", r#"{"a": "x </tool_call> y"}"#)),
        (r#"{"name": "f", "arguments": {"</tool_call>": 1}}"#, call("f", r#"{"</tool_call>": 1}"#)),
        (
            r#"{"name": "f", "arguments": {"a": ["</tool_call></tool_call>\n", "<tool_call>{}</tool_call>"]}}"#,
            call("f", r#"{"a": ["</tool_call></tool_call>\n", "<tool_call>{}</tool_call>"]}"#),
        ),
        (r#"{"arguments": {"a": "</tool_call>"}, "name": "f"}"#, call("f", r#"{"a": "</tool_call>"}"#)),
        (r#"{"name": "f", "arguments": {"a": "<think> hm </think>"}}"#, call("f", r#"{"a": "<think> hm </think>"}"#)),
        (r#"{"name": "f", "arguments": {"a": "<think>"}}"#, call("f", r#"{"a": "<think>"}"#)),
        // repeated keys of the arguments are kept; of repeated members, the last one before the arguments counts
        (
            r#"{"name": "g", "name": "f", "arguments": {"a": 1, "b": 2, "a": 3}}"#,
            call("f", r#"{"a": 1, "b": 2, "a": 3}"#),
        ),
        (r#"{"name": "f", "arguments": null, "arguments": {"a": 1}}"#, call("f", r#"{"a": 1}"#)),
        (r#"{"name": "f", "arguments": {"a": 1}, "more": {"name": 2}}"#, call("f", r#"{"a": 1}"#)),
        // invalid before the arguments, or arguments before the name: the first name in the text, and the raw text
        (r#"{"name": "f" "arguments": {"a": 1}}"#, error("f", r#"{"name": "f" "arguments": {"a": 1}}"#)),
        (r#"{"arguments": {"a": }, "name": "f"}"#, error("f", r#"{"arguments": {"a": }, "name": "f"}"#)),
        // invalid in the arguments: the arguments, and the raw text after them
        (r#"{"name": "f", "arguments": {"a":1,"b": }}"#, error("f", r#"{"a": 1, "b": }}"#)),
        (r#"{"name": "f", "arguments": {"a": "x" "y"}}"#, error("f", r#"{"a": "x""y"}}"#)),
        (r#"{"name": "f", "arguments": {"a": "ü\x41 "}}"#, error("f", r#"{"a": "\u00fc\x41 "}}"#)),
        (r#"{"name": "f", "arguments": {"a": 01}}"#, error("f", r#"{"a": 01}}"#)),
        (r#"{"name": "f", "arguments": {"a": "x"#, error("f", r#"{"a": "x"#)),
        (r#"{"name": "f", "arguments": {"a": 12 "#, error("f", r#"{"a": 12"#)),
        // invalid after the arguments
        (r#"{"name": "f", "arguments": {"a": 1}} x"#, error("f", r#"{"a": 1}} x"#)),
        (r#"{"name": "f", "arguments": {"a": 1}, "name": "g"}"#, error("f", r#"{"a": 1}, "name": "g"}"#)),
        (r#"{"name": "f", "arguments": {"a": 1}, "arguments": {}}"#, error("f", r#"{"a": 1}, "arguments": {}}"#)),
        // without the closing brace, because the arguments would be valid
        (r#"{"name": "f", "arguments": {"a": 1}"#, error("f", r#"{"a": 1"#)),
        (r#"{"name": "f", "arguments": {} "#, error("f", "{")),
        (r#"{'name': 'f'}"#, error("unknown_tool", r#"{'name': 'f'}"#)),
        (r#"{"name": "", "name" : "f", }"#, error("f", r#"{"name": "", "name" : "f", }"#)),
        (r#"f(a=1)"#, error("unknown_tool", "f(a=1)")),
        (r#"{"name": "f"} {"name": "g"}"#, error("f", r#"{"name": "f"} {"name": "g"}"#)),
        ("", error("unknown_tool", "")),
        (" \n", error("unknown_tool", "")),
        // not an object, or an object without a name
        (r#"[{"name": "f"}]"#, error("f", r#"[{"name": "f"}]"#)),
        (r#""f""#, error("unknown_tool", r#""f""#)),
        (r#"{"arguments": {}}"#, error("unknown_tool", r#"{"arguments": {}}"#)),
        (r#"{"name": ""}"#, error("unknown_tool", r#"{"name": ""}"#)),
        (r#"{"name": 3}"#, error("unknown_tool", r#"{"name": 3}"#)),
        (r#"{"name": null, "function": {"name": "f"}}"#, error("f", r#"{"name": null, "function": {"name": "f"}}"#)),
        // names and other members are not validated
        (r#"{"name": "no such tool", "more": 1}"#, call("no such tool", "{}")),
        // a start marker inside a block is part of the block
        (r#"{"name": "f", <tool_call>"#, error("f", r#"{"name": "f", <tool_call>"#)),
    ];
    for (body, expected) in table {
        assert_calls(Format::Hermes, &format!("<tool_call>{body}</tool_call>"), "", std::slice::from_ref(expected));
    }
}

#[test]
fn qwen_xml_blocks_are_parsed() {
    let parameter = |key: &str, value: &str| format!("<function=f><parameter={key}>{value}</parameter></function>");
    let table: &[(String, ToolCall)] = &[
        (parameter("a", "1"), call("f", r#"{"a": 1}"#)),
        (
            "\n<function=f>\n<parameter=a>\nx y\n</parameter>\n<parameter=b>\n[1, {\"c\":null}]\n</parameter>\n</function>\n".into(),
            call("f", r#"{"a": "x y", "b": [1, {"c": null}]}"#),
        ),
        (parameter(" a ", " True "), call("f", r#"{"a": "True"}"#)),
        (parameter("a", "\"1\""), call("f", r#"{"a": "1"}"#)),
        (parameter("a", ""), call("f", r#"{"a": ""}"#)),
        (parameter("a", "NaN"), call("f", r#"{"a": NaN}"#)),
        (parameter("a", "1 < 2 > \"0\"\n\tü"), call("f", r#"{"a": "1 < 2 > \"0\"\n\t\u00fc"}"#)),
        (parameter(" ", "1"), call("f", "{}")),
        (parameter("", "1"), call("f", "{}")),
        ("<function= f ></function>".into(), call("f", "{}")),
        ("words <function=f>more</function> words".into(), call("f", "{}")),
        (
            "<function=f><parameter=a>1</parameter><parameter=b>2</parameter><parameter=a>3</parameter></function>".into(),
            call("f", r#"{"a": 1, "b": 2, "a": 3}"#),
        ),
        // a second function is ignored
        (format!("<function=g></function>{}", parameter("a", "1")), call("g", "{}")),
        ("<function=f><parameter=a>1<parameter=b>2</parameter></function>".into(), call("f", r#"{"a": "1<parameter=b>2"}"#)),
        // a tag without an end is text
        ("<function=f><parameter=a</function>".into(), call("f", "{}")),
        // a value that begins like JSON
        (parameter("a", "[1, 2] and"), call("f", r#"{"a": "[1, 2] and"}"#)),
        (parameter("a", "[1, 2"), call("f", r#"{"a": "[1, 2"}"#)),
        (parameter("a", "true\u{a0}"), call("f", r#"{"a": true}"#)),
        (parameter("a", "12 months"), call("f", r#"{"a": "12 months"}"#)),
        (parameter("a", "nullable"), call("f", r#"{"a": "nullable"}"#)),
        // a parameter or a function without an end
        ("<function=f><parameter=a>1</function>".into(), error("f", r#"{"a": 1"#)),
        ("<function=f><parameter=a>x \"y\" </function> z".into(), error("f", r#"{"a": "x \"y\""#)),
        ("<function=f><parameter=a></function>".into(), error("f", r#"{"a": "#)),
        ("<function=f><parameter= >1</function>".into(), error("f", "{")),
        ("<function=f><parameter=a>1</parameter>\n".into(), error("f", r#"{"a": 1"#)),
        (" <function=f> ".into(), error("f", "{")),
        // no name
        ("<function=></function>".into(), error("unknown_tool", "<function=></function>")),
        ("<function=  >1</function>".into(), error("unknown_tool", "<function=  >1</function>")),
        (r#"{"name": "f"}"#.into(), error("unknown_tool", r#"{"name": "f"}"#)),
        (String::new(), error("unknown_tool", "")),
        ("<function=></function><function=f></function>".into(), call("f", "{}")),
    ];
    for (body, expected) in table {
        assert_calls(Format::QwenXml, &format!("<tool_call>{body}</tool_call>"), "", std::slice::from_ref(expected));
    }
}

#[test]
fn glm_blocks_are_parsed() {
    let table: &[(&str, ToolCall)] = &[
        ("f<arg_key>a</arg_key><arg_value>1</arg_value>", call("f", r#"{"a": 1}"#)),
        (
            "f\n<arg_key>a</arg_key>\n<arg_value>x y</arg_value>\n<arg_key> b </arg_key>\n<arg_value> true </arg_value>\n",
            call("f", r#"{"a": "x y", "b": true}"#),
        ),
        ("f", call("f", "{}")),
        (" my tool \n", call("my tool", "{}")),
        ("f<arg_key></arg_key><arg_value>1</arg_value>", call("f", r#"{"": 1}"#)),
        (
            "f<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>a</arg_key><arg_value>2</arg_value>",
            call("f", r#"{"a": 1, "a": 2}"#),
        ),
        ("f<arg_key>a</arg_key><arg_value>{\"b\":1.0}</arg_value>", call("f", r#"{"a": {"b": 1.0}}"#)),
        ("f<arg_key>a</arg_key>", call("f", "{}")),
        ("f<arg_key>a</arg_key> x <arg_value>1</arg_value>", call("f", "{}")),
        // a value without an end
        ("f<arg_key>a</arg_key><arg_value>1", error("f", r#"{"a": 1"#)),
        ("f<arg_key>a</arg_key><arg_value>\nx \"y\" \n", error("f", r#"{"a": "x \"y\""#)),
        // a key ends at the end tag that a value follows
        (
            "f<arg_key>a</arg_key>x<arg_key>b</arg_key><arg_value>1</arg_value>",
            call("f", r#"{"a</arg_key>x<arg_key>b": 1}"#),
        ),
        ("", error("unknown_tool", "")),
        (
            " <arg_key>a</arg_key><arg_value>1</arg_value> ",
            error("unknown_tool", "<arg_key>a</arg_key><arg_value>1</arg_value>"),
        ),
    ];
    for (body, expected) in table {
        assert_calls(Format::Glm, &format!("<tool_call>{body}</tool_call>"), "", std::slice::from_ref(expected));
    }
}

#[test]
fn kimi_k2_calls_are_parsed() {
    let with_id = |call: ToolCall, id: &str| ToolCall { id: Some(id.to_owned()), ..call };
    let table: &[(&str, &str, ToolCall)] = &[
        ("functions.f:0", r#"{"a":1}"#, call("f", r#"{"a": 1}"#)),
        ("f:12", "{}", call("f", "{}")),
        ("functions.f", "{}", call("f", "{}")),
        ("f", "{}", call("f", "{}")),
        ("functions.a.b-c_ü:0", "{}", call("a.b-c_ü", "{}")),
        ("functions.:0", "{}", call("functions.", "{}")),
        // the whole id is the name if it has another form
        ("functions.f:0:1", "{}", call("functions.f:0:1", "{}")),
        ("functions.f/g:0", "{}", call("functions.f/g:0", "{}")),
        ("f:x", "{}", call("f:x", "{}")),
        (":0", "{}", call(":0", "{}")),
        // JSON, but not an object
        ("f:0", "[1]", error("f", "[1]")),
        ("f:0", "null", call("f", "{}")),
        // invalid JSON
        ("functions.f:0", "{\"a\":", error("f", "{\"a\": ")),
        ("functions.f:0", "{\"a\":1} x", error("f", "{\"a\": 1} x")),
        ("f:0", "[1", error("f", "[1")),
        ("f:0", "", error("f", "")),
        ("a b", "{}", error("", "")),
    ];
    for (id, arguments, expected) in table {
        let section_call =
            format!("<|tool_call_begin|> {id}\n<|tool_call_argument_begin|> {arguments} <|tool_call_end|>");
        let text = format!("<|tool_calls_section_begin|>{section_call}<|tool_calls_section_end|>");
        if expected.name.is_empty() {
            assert_calls(Format::KimiK2, &text, &text, &[]);
        } else {
            assert_calls(Format::KimiK2, &text, "", &[with_id(expected.clone(), id)]);
        }
    }
}

#[test]
fn kimi_k2_sections_are_parsed() {
    let section_call = |id: &str| format!("<|tool_call_begin|>{id}<|tool_call_argument_begin|>{{}}<|tool_call_end|>");
    let section = |inner: &str| format!("<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>");
    let called = |id: &str| ToolCall { id: Some(id.to_owned()), ..call(id, "{}") };
    let all = format!(
        "so {} and {}",
        section(&format!(" x {} y {}", section_call("a"), section_call("b"))),
        section(&section_call("c"))
    );
    assert_calls(Format::KimiK2, &all, "so  and", &[called("a"), called("b"), called("c")]);
    let cut = section(&format!("{}<|tool_call_begin|>b<|tool_call_argument_begin|>{{", section_call("a")));
    assert_calls(
        Format::KimiK2,
        &cut,
        "",
        &[called("a"), ToolCall { arguments: "{".to_owned(), error: true, ..called("b") }],
    );
    let cut = section(&format!("{}<|tool_call_begin|>b<|tool_call_argument_begin|>[", section_call("a")));
    assert_calls(Format::KimiK2, &cut, "", &[called("a")]);
    let late = section(&format!(
        "<|tool_call_begin|>a<|tool_call_argument_begin|>[]<|tool_call_end|> x {}",
        section_call("b")
    ));
    let list = ToolCall { arguments: "[]".to_owned(), error: true, ..called("a") };
    assert_calls(Format::KimiK2, &late, "", &[list, called("b")]);
    let restarted = section(&format!("<|tool_call_begin|>a {}", section_call("b")));
    assert_calls(Format::KimiK2, &restarted, "", &[called("b")]);
    let open = "<|tool_calls_section_begin|>";
    assert_calls(Format::KimiK2, &format!("{open}{} x", section_call("a")), "", &[called("a")]);
    let whole = format!("{open}<|tool_call_begin|>a<|tool_call_argument_begin|>[]<|tool_call_end|>");
    for text in [section(""), section("x"), section_call("a"), whole] {
        assert_calls(Format::KimiK2, &text, &text, &[]);
    }
}

#[test]
fn complete_calls_are_parsed_anywhere_in_the_text() {
    let block = |name: &str| format!("<tool_call>{{\"name\": \"{name}\"}}</tool_call>");
    let (f, g) = (block("f"), block("g"));
    let table = [
        (format!("{f}\n{g}"), "", vec!["f", "g"]),
        (format!("Let me see.\n\n{f}\n"), "Let me see.", vec!["f"]),
        (format!("a {f} b {g} c"), "a  b  c", vec!["f", "g"]),
        (format!("{f}</tool_call>"), "</tool_call>", vec!["f"]),
        (" no calls \n".to_owned(), " no calls \n", vec![]),
        (format!("</tool_call> {f}"), "</tool_call>", vec!["f"]),
        // a call without an end is content, unless its arguments have begun
        (format!("{f} <tool_call>{{\"name\": \"g\""), "<tool_call>{\"name\": \"g\"", vec!["f"]),
        (
            format!("{f} <tool_call>{{\"name\": \"g\", \"arguments\": "),
            "<tool_call>{\"name\": \"g\", \"arguments\":",
            vec!["f"],
        ),
        ("a <tool_call>\n".to_owned(), "a <tool_call>\n", vec![]),
        ("a <tool_cal".to_owned(), "a <tool_cal", vec![]),
        ("a <tool_<tool_call".to_owned(), "a <tool_<tool_call", vec![]),
    ];
    for (text, content, names) in table {
        let calls: Vec<ToolCall> = names.into_iter().map(|name| call(name, "{}")).collect();
        assert_calls(Format::Hermes, &text, content, &calls);
    }
}

#[test]
fn string_that_contains_a_marker_and_breaks_ends_the_call_at_the_marker() {
    let table = [
        // a line feed, an invalid escape, text after the string, the end of the text
        ("x</tool_call>\nso", "x", "so"),
        ("x</tool_call>\\q\"}}</tool_call>so", "x", "\\q\"}}</tool_call>so"),
        ("x</tool_call>a\"b\"}}</tool_call>so", "x", "a\"b\"}}</tool_call>so"),
        ("x</tool_call>so", "x", "so"),
        ("x</tool_call></tool_call>so\"", "x", "</tool_call>so\""),
        ("x\\u00</tool_call>so", "x\\u00", "so"),
    ];
    for (text, arguments, content) in table {
        let text = format!("<tool_call>{{\"name\": \"f\", \"arguments\": {{\"a\": \"{text}");
        assert_calls(Format::Hermes, &text, content, &[error("f", &format!("{{\"a\": \"{arguments}"))]);
    }
    let text = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x}}</tool_call>\n<tool_call>{\"name\": \"g\"}</tool_call>";
    assert_calls(Format::Hermes, text, "", &[error("f", "{\"a\": \"x}}"), call("g", "{}")]);
    let text = "<tool_call>{\"name\": \"</tool_call>so";
    assert_calls(Format::Hermes, text, "so", &[error("unknown_tool", "{\"name\": \"")]);
}

#[test]
fn call_that_is_cut_off_in_its_arguments_is_an_invalid_call() {
    let hermes = |json: &str| format!("a <tool_call>\n{{\"name\": \"f\", \"arguments\": {json}");
    let qwen_xml = |body: &str| format!("a <tool_call>\n<function=f>\n{body}");
    let table = [
        (Format::Hermes, hermes("{"), "{"),
        (Format::Hermes, hermes("{\"a\": \"x "), "{\"a\": \"x "),
        (Format::Hermes, hermes("{\"a\": \"\\u00"), "{\"a\": \"\\u00"),
        (Format::Hermes, hermes("{\"a\": 1"), "{\"a\": 1"),
        (Format::Hermes, hermes("{\"a\": \"x</tool_"), "{\"a\": \"x</tool_"),
        // the arguments are complete, but the call is not
        (Format::Hermes, hermes("{\"a\": 1}"), "{\"a\": 1"),
        (Format::Hermes, hermes("{\"a\": 1}}\n"), "{\"a\": 1}}"),
        (Format::Hermes, hermes("{\"a\": 1}}\n</tool_call"), "{\"a\": 1}}\n</tool_call"),
        (Format::Glm, "a <tool_call>f\n<arg_key>".to_owned(), "{"),
        (Format::Glm, "a <tool_call>f<arg_key>b</arg_key><arg_value>x ".to_owned(), "{\"b\": \"x"),
        (Format::Glm, "a <tool_call>f<arg_key>b</arg_key><arg_value>1</arg_value>".to_owned(), "{\"b\": 1"),
        (Format::QwenXml, qwen_xml(""), "{"),
        (Format::QwenXml, qwen_xml("<parameter=a"), "{"),
        (Format::QwenXml, qwen_xml("<parameter=a>\n"), "{\"a\": "),
        (Format::QwenXml, qwen_xml("<parameter=a>\nx \"y\n"), "{\"a\": \"x \\\"y"),
        (Format::QwenXml, qwen_xml("<parameter=a>\n[1, 2"), "{\"a\": [1, 2"),
        (Format::QwenXml, qwen_xml("<parameter=a>x</param"), "{\"a\": \"x</param"),
        (Format::QwenXml, qwen_xml("<parameter=a>x</parameter><param"), "{\"a\": \"x\""),
        (Format::QwenXml, qwen_xml("<parameter=a>x</parameter></function>"), "{\"a\": \"x\""),
    ];
    for (format, text, arguments) in table {
        assert_calls(format, &text, "a", &[error("f", arguments)]);
    }
}
