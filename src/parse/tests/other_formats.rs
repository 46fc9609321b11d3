// SPDX-License-Identifier: Apache-2.0
//! Calls in the formats that strands-sglang has no parsers for.

use super::*;

#[test]
fn llama3_calls_are_parsed() {
    let f = r#"{"name": "f", "parameters": {"a": 1}}"#;
    let g = r#"{"name": "g", "arguments": {}}"#;
    let called = [call("f", r#"{"a": 1}"#), call("g", "{}")];
    let table: &[(String, &str, &[ToolCall])] = &[
        (f.into(), "", &called[..1]),
        (format!(" {f} ; {g}\n"), "", &called),
        (format!("<|python_tag|>{f}"), "", &called[..1]),
        (format!("<|python_tag|> {f};{g}"), "", &called),
        (format!("I will.\n<|python_tag|>{f}; {g} done"), "I will.\n done", &called),
        (format!("<|python_tag|>{f};"), ";", &called[..1]),
        (format!("<|python_tag|>{f} {g}"), g, &called[..1]),
        (format!("<|python_tag|>{f};{{\"name\": "), ";{\"name\":", &called[..1]),
        (
            format!("<|python_tag|>{f};{{\"name\": <|python_tag|>{g}"),
            &format!(";{{\"name\": <|python_tag|>{g}"),
            &called[..1],
        ),
        // after a tag, an invalid call is a call with an error
        ("<|python_tag|>{\"name\": \"f\", }".into(), "", &[error("f", "{\"name\": \"f\", }")]),
        ("<|python_tag|>{\"a\": 1}".into(), "", &[error("unknown_tool", "{\"a\": 1}")]),
        (format!("<|python_tag|>{{\"name\": \"h\"}};{g}"), "", &[call("h", "{}"), called[1].clone()]),
        (format!("<|python_tag|>{};{g}", f.replace("1", "1, ")), "", &[error("f", "{\"a\": 1, }}"), called[1].clone()]),
        (
            format!("<|python_tag|>{};{g}", f.replace("}}", "}, x: [2}}")),
            "",
            &[error("f", "{\"a\": 1}, x: [2}}"), called[1].clone()],
        ),
        (r#"<|python_tag|>{"name": "f", "parameters": 1, "arguments": {"a": 1}}"#.into(), "", &[error("f", "1")]),
        // a call that is cut off
        (
            format!("so <|python_tag|>{g};{{\"name\": \"f\", \"parameters\": {{\"a\": 1}}"),
            "so",
            &[called[1].clone(), error("f", "{\"a\": 1")],
        ),
    ];
    for (text, content, calls) in table {
        assert_calls(Format::Llama3, text, content, calls);
    }
    let texts = [
        // JSON without the members of a call is content
        r#"{"name": "Ada", "born": 1815}"#.to_owned(),
        r#"{"name": "f", "parameters": null}"#.to_owned(),
        r#"{"name": "f", "parameters": {}"#.to_owned(),
        format!("{f};"),
        format!("{f} {g}"),
        format!("{f}; and so on"),
        format!("{f}; {{\"a\": 1}}"),
        format!("First {f}"),
        // a tag without an object is text
        "<|python_tag|>print(1)".to_owned(),
        "<|python_tag|>".to_owned(),
        "<|python_tag|>{\"name\": \"f\"".to_owned(),
        format!("<|python_tag|>{}{f}", " ".repeat(600)),
    ];
    for text in texts {
        assert_calls(Format::Llama3, &text, &text, &[]);
    }
    let late = format!("{{\"a\": 1}} <|python_tag|>{f}");
    assert_calls(Format::Llama3, &late, "{\"a\": 1}", &called[..1]);
}

/// SGLang takes `parameters` if Python counts its value as true, and `arguments` otherwise.
#[test]
fn arguments_are_the_member_that_sglang_takes() {
    let (a, b) = (r#"{"a": 1}"#, r#"{"b": [0]}"#);
    let formats = [
        (Format::Hermes, "<tool_call>", "</tool_call>"),
        (Format::Llama3, "<|python_tag|>", ""),
        (Format::Mistral, "[TOOL_CALLS][", "]"),
    ];
    for (format, start, end) in formats {
        let text = |first: [&str; 2], second: [&str; 2]| {
            let [first, second] = [first, second].map(|[key, value]| format!("\"{key}\": {value}"));
            format!(r#"{start}{{"name": "f", {first}, {second}}}{end}"#)
        };
        for false_value in ["{}", "{ }", "null", "[]", "[\n]", "\"\"", "0", "-0", "-0.0", "0e5", "false"] {
            for [key, other] in [["arguments", "parameters"], ["parameters", "arguments"]] {
                assert_calls(format, &text([key, a], [other, false_value]), "", &[call("f", a)]);
                assert_calls(format, &text([key, false_value], [other, a]), "", &[call("f", a)]);
            }
        }
        for value in [b, "[1]", "\"x\"", "1", "true", "NaN"] {
            assert_calls(format, &text(["parameters", a], ["arguments", value]), "", &[call("f", a)]);
            let late = text(["arguments", a], ["parameters", value]);
            // arguments that are sent already cannot be replaced
            let sent = error("f", &format!(r#"{a}, "parameters": {value}}}"#));
            let taken = if value == b { call("f", b) } else { error("f", value) };
            assert_calls(format, &late, "", &[if format == Format::Mistral { taken } else { sent }]);
        }
    }
}

#[test]
fn pythonic_calls_are_parsed() {
    let table: &[(&str, &[ToolCall])] = &[
        ("[f()]", &[call("f", "{}")]),
        (" [ f( a = 1 , b=\"x\" ) ,\n g() , ]\n", &[call("f", r#"{"a": 1, "b": "x"}"#), call("g", "{}")]),
        (
            "[a.b(c=-1.50, d=[True, False, None], e={'k': 1e5},)]",
            &[call("a.b", r#"{"c": -1.5, "d": [true, false, null], "e": {"k": 100000.0}}"#)],
        ),
        (
            "[f(a='it\\'s', b=\"\"\"two\n\"lines\\\"\"\"\", c=r'\\d')]",
            &[call("f", r#"{"a": "it's", "b": "two\n\"lines\"", "c": "\\d"}"#)],
        ),
        (
            r#"[f(a='\x41\u00e9\U0001f600\101\0\q\a\ud800', b='ü')]"#,
            &[call("f", r#"{"a": "A\u00e9\ud83d\ude00A\u0000\\q\u0007\ud800", "b": "\u00fc"}"#)],
        ),
        (
            "[f(a={1: 2, True: 3, None: {}, 'b': 1, 'b': [2]}, b=00, c=1., d=.5)]",
            &[call("f", r#"{"a": {"1": 2, "true": 3, "null": {}, "b": [2]}, "b": 0, "c": 1.0, "d": 0.5}"#)],
        ),
        ("<|python_start|>[f(a=[])]<|python_end|>", &[call("f", r#"{"a": []}"#)]),
        ("<|python_start|>[f(a=[])]", &[call("f", r#"{"a": []}"#)]),
    ];
    for (text, calls) in table {
        assert_calls(Format::Pythonic, text, "", calls);
    }
    // a list that begins and ends like calls, but is not a list of calls
    let invalid = [
        "[f(1)]",
        "[f(1), ]",
        "[f(a=x)]",
        "[f(a=1, a=2)]",
        "[f(a='1)]",
        "[f(a=(1, 2))]",
        "[f(a=007)]",
        "[f(a=1_0)]",
        "[f(a=true)]",
        "[f(a='a\nb')]",
        "[f(a=1)(b=2)]",
        "[f(a=1), 2, g()]",
        "[f(), g[0]()]",
        "[f(a=1 b=2)]",
        "[f(a=1e)]",
        "[f(a='\\x4')]",
    ];
    for text in invalid {
        assert_calls(Format::Pythonic, text, "", &[error("f", text)]);
    }
    let texts = [
        "[]",
        "[1, 2]",
        "[link](there)",
        "[f(a=1)] and more",
        "Now [f(a=1)]",
        "[f(a=1)",
        "[f(a=[1]",
        "[f",
        "[",
        "[1f()]",
        "[.f()]",
        "[f(a=1)][0]",
        "f(a=1)",
        "<|python_start|>",
        "<|python_start|>f()",
        "<|python_start|>[f(",
    ];
    for text in texts {
        assert_calls(Format::Pythonic, text, text, &[]);
    }
}

#[test]
fn mistral_calls_are_parsed() {
    let with_id = |call: ToolCall, id: &str| ToolCall { id: Some(id.to_owned()), ..call };
    let table: &[(&str, &str, &[ToolCall])] = &[
        (r#"[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]"#, "", &[call("f", r#"{"a": 1}"#)]),
        (
            r#"[TOOL_CALLS][{"name": "f", "arguments": {"a": "]"}, "id": "abc123def"}, {"name": "g"}]"#,
            "",
            &[with_id(call("f", r#"{"a": "]"}"#), "abc123def"), call("g", "{}")],
        ),
        (r#"Sure. [TOOL_CALLS] [{"name": "f"}] Done."#, "Sure.  Done.", &[call("f", "{}")]),
        (r#"[TOOL_CALLS]f[ARGS]{"a": "}"}"#, "", &[call("f", r#"{"a": "}"}"#)]),
        (r#"[TOOL_CALLS]f[ARGS]{"a": "\"}\\"} {}"#, "{}", &[call("f", r#"{"a": "\"}\\"}"#)]),
        (r#"[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{"b":2}"#, "", &[call("f", "{}"), call("g", r#"{"b": 2}"#)]),
        (r#"[TOOL_CALLS] f [CALL_ID]abc123def[ARGS] {}"#, "", &[with_id(call("f", "{}"), "abc123def")]),
        (r#"[TOOL_CALLS]f[ARGS][1]"#, "", &[error("f", "[1]")]),
        // closed brackets around invalid JSON or an invalid call
        (r#"[TOOL_CALLS]f[ARGS]{a: 1}"#, "", &[error("f", "{a: 1}")]),
        (r#"[TOOL_CALLS]f[ARGS]{"a":1, b: [2}} x"#, "x", &[error("f", r#"{"a": 1, b: [2}}"#)]),
        // brackets that are not closed: the call is cut off
        (r#"[TOOL_CALLS]f[ARGS]{"a": 1"#, "", &[error("f", r#"{"a": 1"#)]),
        (r#"[TOOL_CALLS]f[ARGS]{"a": "}"#, "", &[error("f", r#"{"a": "}"#)]),
        (r#"[TOOL_CALLS] [{"name": "f"},]"#, "", &[error("f", r#"[{"name": "f"},]"#)]),
        (
            r#"[TOOL_CALLS] [{"name": "f"}, 1, {"name": 2, "id": "x"}]"#,
            "",
            &[
                call("f", "{}"),
                error("unknown_tool", "1"),
                with_id(error("unknown_tool", r#"{"name": 2, "id": "x"}"#), "x"),
            ],
        ),
        (r#"[TOOL_CALLS] is it [TOOL_CALLS]f[ARGS]{}"#, "[TOOL_CALLS] is it", &[call("f", "{}")]),
        (r#"[TOOL_CALLS][TOOL_CALLS]f[ARGS]{}"#, "[TOOL_CALLS]", &[call("f", "{}")]),
    ];
    for (text, content, calls) in table {
        assert_calls(Format::Mistral, text, content, calls);
    }
    let long = format!("[TOOL_CALLS]{}[ARGS]{{}}", "f".repeat(600));
    assert_calls(Format::Mistral, &format!("{long}[TOOL_CALLS]f[ARGS]{{}}"), &long, &[call("f", "{}")]);
    let texts = [
        "[TOOL_CALLS]",
        "[TOOL_CALLS] []",
        "[TOOL_CALLS] [1]",
        "[TOOL_CALLS]f",
        "[TOOL_CALLS]f[ARGS]",
        "[TOOL_CALLS]f[ARGS]1",
        "[TOOL_CALLS]f{}",
        "[TOOL_CALLS][ARGS]{}",
        "[TOOL_CALLS]f g[ARGS]{}",
        "[TOOL_CALLS]f[CALL_ID]1{}",
        "[TOOL_CALLS]f[ARGS][{\"a\": 1",
        "[TOOL_CALLS] [{\"name\": \"f\"}",
        "[{\"name\": \"f\"}]",
        &long,
    ];
    for text in texts {
        assert_calls(Format::Mistral, text, text, &[]);
    }
}

#[test]
fn deepseek_sections_are_parsed() {
    let fenced = |name: &str, json: &str| {
        format!("<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json}\n```<｜tool▁call▁end｜>")
    };
    let plain = |name: &str, json: &str| format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json}<｜tool▁call▁end｜>");
    let section = |inner: &str| format!("<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>");
    let table: &[(String, &[ToolCall])] = &[
        (fenced("f", r#"{"a":1}"#), &[call("f", r#"{"a": 1}"#)]),
        (format!("{}\n{}", fenced("f", "{}"), fenced("g", "[]")), &[call("f", "{}"), error("g", "[]")]),
        (plain("f", r#"{"a":1}"#), &[call("f", r#"{"a": 1}"#)]),
        (format!("{}{}", plain("f", "{}"), plain("g", " {} ")), &[call("f", "{}"), call("g", "{}")]),
        (plain("function", r#"{"a":1}"#), &[call("function", r#"{"a": 1}"#)]),
        (format!("{}<｜tool▁call▁begin｜>g", plain("f", "{}")), &[call("f", "{}")]),
        (plain("f", r#"{"a":1} x"#), &[error("f", r#"{"a": 1} x"#)]),
        (
            format!("{}<｜tool▁call▁begin｜>g<｜tool▁sep｜>{{\"a\":1}}", plain("f", "{}")),
            &[call("f", "{}"), error("g", "{\"a\": 1")],
        ),
        // a code fence without an end
        (fenced("f", r#"{"a":1}"#).replace("\n```<", "<"), &[error("f", r#"{"a": 1"#)]),
        (
            fenced("f", r#"{"a":1}"#).replace("```json", "```"),
            &[error("f", "function<｜tool▁sep｜>f\n```\n{\"a\":1}\n```")],
        ),
        (fenced("f", "{a}"), &[error("f", "{a}")]),
        (plain("f", "{a}"), &[error("f", "{a}")]),
        (plain("f", ""), &[error("f", "")]),
        (plain(" ", "{}"), &[error("unknown_tool", "<｜tool▁sep｜>{}")]),
        (plain("function", "f"), &[error("f", "function<｜tool▁sep｜>f")]),
        ("<｜tool▁call▁begin｜>f {}<｜tool▁call▁end｜>".to_owned(), &[error("unknown_tool", "f {}")]),
    ];
    for (inner, calls) in table {
        assert_calls(Format::DeepSeek, &format!("So.\n{}", section(inner)), "So.", calls);
    }
    let open = format!("<｜tool▁calls▁begin｜>{}", plain("f", "{}"));
    assert_calls(Format::DeepSeek, &open, "", &[call("f", "{}")]);
    for text in [section(""), section("f"), plain("f", "{}"), format!("<｜tool▁calls▁begin｜>{}", plain("f", "[]"))]
    {
        assert_calls(Format::DeepSeek, &text, &text, &[]);
    }
}

#[test]
fn minimax_blocks_are_parsed() {
    let invoke = |name: &str, inner: &str| format!("<invoke name=\"{name}\">\n{inner}</invoke>\n");
    let parameter = |key: &str, value: &str| format!("<parameter name=\"{key}\">{value}</parameter>\n");
    let block = |inner: &str| format!("<minimax:tool_call>\n{inner}</minimax:tool_call>");
    let a = parameter("a", "x");
    let with_a = call("f", r#"{"a": "x"}"#);
    let table: &[(String, &[ToolCall])] = &[
        (invoke("f", ""), &[call("f", "{}")]),
        (invoke("f", &a), std::slice::from_ref(&with_a)),
        (invoke("f", &a) + &invoke("g", &parameter("b", "1")), &[with_a.clone(), call("g", r#"{"b": "1"}"#)]),
        (invoke("f", &format!("{a}and{}", parameter("b", ""))), &[call("f", r#"{"a": "x", "b": ""}"#)]),
        (invoke("f", &parameter("a", "\n x \n")), &[call("f", r#"{"a": "\n x \n"}"#)]),
        (invoke("f", &parameter(" a<b ", "<p>y</p>")), &[call("f", r#"{"a<b": "<p>y</p>"}"#)]),
        ("<invoke name=\"f\"/>".to_owned(), &[call("f", "{}")]),
        // JSON in place of parameters
        (invoke("f", " {\"a\":[1, \"ü\"]} "), &[call("f", r#"{"a": [1, "\u00fc"]}"#)]),
        (invoke("f", "{\"a\": NaN}"), &[error("f", "{{\"a\": NaN}")]),
        (invoke("f", "[1]"), &[error("f", "{[1]")]),
        (invoke("f", "\"a\": 1}"), &[error("f", "{")]),
        // end tags in a value
        (
            invoke("f", &parameter("a", "x </invoke></minimax:tool_call> y")),
            &[call("f", r#"{"a": "x </invoke></minimax:tool_call> y"}"#)],
        ),
        (invoke("f", &parameter("a", &invoke("g", ""))), &[call("f", r#"{"a": "<invoke name=\"g\">\n</invoke>\n"}"#)]),
        // a value, a call or a name without an end
        (
            format!("{}{}", invoke("f", "<parameter name=\"a\">x\n"), invoke("g", "")),
            &[error("f", r#"{"a": "x\n"#), call("g", "{}")],
        ),
        (
            format!("<invoke name=\"f\">{a}{}", invoke("g", &a)),
            &[error("f", r#"{"a": "x""#), call("g", r#"{"a": "x"}"#)],
        ),
        (format!("<invoke name=\"f\"><invoke name=\"g\">{a}</invoke>"), &[error("f", "{"), call("g", r#"{"a": "x"}"#)]),
        (format!("<invoke name=\"f\">{a}"), &[error("f", r#"{"a": "x""#)]),
        // malformed tags
        (invoke("f", "<parameter name=a>x</parameter>"), &[error("f", "{")]),
        (invoke("f", &format!("{a}<parameter name=\"b\" c=\"d\">y</parameter>")), &[error("f", r#"{"a": "x""#)]),
        (
            format!("</invoke><invoke name=f>{a}</invoke>{}", invoke("g", "")),
            &[error("unknown_tool", "<invoke name=f><parameter name=\"a\">x</parameter>"), call("g", "{}")],
        ),
        (invoke(" ", "") + &invoke("g", ""), &[error("unknown_tool", "<invoke name=\" \">"), call("g", "{}")]),
    ];
    for (inner, calls) in table {
        assert_calls(Format::MiniMaxM2, &format!("So.\n{}", block(inner)), "So.", calls);
        assert_calls(
            Format::MiniMaxM2,
            &format!("{} Done. {}", block(inner), block("")),
            "Done. <minimax:tool_call>\n</minimax:tool_call>",
            calls,
        );
    }
    let two = [block(&invoke("f", "")), block(&invoke("g", ""))].join("\n");
    assert_calls(Format::MiniMaxM2, &two, "", &[call("f", "{}"), call("g", "{}")]);
    // without the end of the block
    let open = format!("<minimax:tool_call>{}", invoke("f", &a));
    assert_calls(Format::MiniMaxM2, &format!("{open} so"), "", std::slice::from_ref(&with_a));
    assert_calls(Format::MiniMaxM2, &format!("{open}<invoke name=\"g\"><para"), "", &[with_a, error("g", "{")]);
    let cut = "<minimax:tool_call><invoke name=\"f\"><parameter name=\"a\">x</invoke> y</param";
    assert_calls(Format::MiniMaxM2, cut, "", &[error("f", r#"{"a": "x"#)]);
    for text in [block(""), block("f"), "<minimax:tool_call><invoke name=\"f\"".to_owned(), invoke("f", &a)] {
        assert_calls(Format::MiniMaxM2, &text, &text, &[]);
    }
}

#[test]
fn dsml_blocks_are_parsed() {
    for (format, block) in [(Format::DeepSeekV32, "function_calls"), (Format::DeepSeekV4, "tool_calls")] {
        let dsml = |text: &str| text.replace("</", "</｜DSML｜").replace("<|", "<｜DSML｜");
        let parameter =
            |attributes: &str, value: &str| format!("<|parameter name=\"a\"{attributes}>{value}</parameter>\n");
        let string = |value: &str| parameter(" string=\"true\"", value);
        let json = |value: &str| parameter(" string=\"false\"", value);
        let invoke = |inner: &str| format!("<|invoke name=\"f\">\n{inner}</invoke>\n");
        let a = |value: &str| call("f", &format!("{{\"a\": {value}}}"));
        let table: &[(String, &[ToolCall])] = &[
            (invoke(""), &[call("f", "{}")]),
            (invoke("\n"), &[call("f", "{}")]),
            ("<|invoke name=\"f\"/>".to_owned(), &[call("f", "{}")]),
            (invoke(&string(" x\n")), &[a(r#"" x\n""#)]),
            (invoke(&string("null")), &[a(r#""null""#)]),
            (invoke(&string("{\"b\": 1}")), &[a(r#""{\"b\": 1}""#)]),
            (invoke(&json("{\"b\":[1,null]}")), &[a(r#"{"b": [1, null]}"#)]),
            (invoke(&json(" 1.0 ")), &[a("1.0")]),
            (invoke(&json("null")), &[a("null")]),
            (invoke(&json("NaN")), &[a(r#""NaN""#)]),
            (invoke(&json("x y")), &[a(r#""x y""#)]),
            (invoke("{\"a\":\"x\"}\n"), &[a(r#""x""#)]),
            (invoke(&string("x")) + &invoke(&json("2")), &[a(r#""x""#), a("2")]),
            (invoke(&parameter("", "x")), &[error("f", "{")]),
            (invoke(&parameter(" string=\"True\"", "x")), &[a(r#""x""#)]),
            (invoke(&parameter(" string=\"True\"", "1")), &[a("1")]),
            (invoke(&parameter(" string=\"\"", "x")), &[error("f", "{")]),
            (invoke(&parameter(" string=\"true\" b=\"\"", "x")), &[error("f", "{")]),
            (invoke(&parameter("string=\"true\"", "x")), &[error("f", "{")]),
            (invoke(&parameter("\n string=\"true\"\t", " x ")), &[a(r#"" x ""#)]),
            (invoke("<|parameter \u{1c}\u{a0}\nname=\"a\"  string=\"false\" >2</parameter>"), &[a("2")]),
            (invoke("<|parameter name =\"a\" string=\"false\">2</parameter>"), &[error("f", "{")]),
            (format!("<|invoke\n  name=\"f\" \n>{}</invoke>", string("x")), &[a(r#""x""#)]),
            ("<|invoke name=\"f\" />".to_owned(), &[call("f", "{}")]),
            (invoke("<|parameter string=\"true\" name=\"a\">x</parameter>"), &[error("f", "{")]),
            (invoke("<|parameter name=\"a\" string=\"true\">x"), &[error("f", r#"{"a": "x"#)]),
        ];
        for (inner, calls) in table {
            let text = dsml(&format!("So.\n\n<|{block}>\n{inner}</{block}>"));
            assert_calls(format, &text, "So.", calls);
        }
        // tags of the value's end, and of the other format
        let text = dsml(&format!("<|{block}>{}</{block}>", invoke(&string("x</invoke></{block}>y"))));
        let value = r#""x</\uff5cDSML\uff5cinvoke></\uff5cDSML\uff5c{block}>y""#;
        assert_calls(format, &text, "", &[a(value)]);
        let other = dsml(&format!("<|calls>{}</calls>", invoke("")));
        assert_calls(format, &other, &other, &[]);
    }
}
