"""What transformers makes of conversations: for each model directory the rendered text and its token ids.

Reads one JSON object, {"models": {name: directory}, "cases": [...]}, and writes {name: {case: {"text", "ids"} | {"error"}}}.
"""

import json
import sys

from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import _compile_jinja_template


def text_of(content):
    return "\n".join(block["text"] for block in content)


def chat(message, style):
    role = message["role"]
    if role == "system":
        return {"role": message["name"] if style["developer"] else "system", "content": text_of(message["content"])}
    if role == "user":
        return {"role": "user", "content": text_of(message["content"])}
    if role == "tool":
        return {"role": "tool", "content": text_of(message["content"]), "tool_call_id": message["callId"], "name": message["name"]}
    blocks = message["content"]
    result = {"role": "assistant", "content": "".join(block["text"] for block in blocks if block["type"] == "text")}
    reasoning = "".join(block["text"] for block in blocks if block["type"] == "reasoning")
    if reasoning:
        result["thinking" if style["family"] == "harmony" else "reasoning_content"] = reasoning
    calls = [block for block in blocks if block["type"] == "tool_call"]
    if calls:
        if result["content"] == "" and style["family"] == "deepseek":
            result["content"] = None
        result["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"] if style["argumentsAsText"] else json.loads(call["arguments"])},
            }
            for call in calls
        ]
    return result


def main():
    job = json.load(sys.stdin)
    results = {}
    for name, model in job["models"].items():
        tokenizer = PreTrainedTokenizerFast.from_pretrained(model["directory"])
        template = _compile_jinja_template(tokenizer.chat_template)
        results[name] = {}
        for case in job["cases"]:
            tools = [{"type": "function", "function": tool} for tool in case["tools"]] or None
            try:
                # As apply_chat_template does, except that a content of None stays None: some templates ask for it.
                variables = {**tokenizer.special_tokens_map, **case["kwargs"], "tools": tools, "documents": None, "add_generation_prompt": True}
                text = template.render(messages=[chat(message, model) for message in case["messages"]], **variables)
                results[name][case["name"]] = {"text": text, "ids": tokenizer.encode(text, add_special_tokens=False)}
            except Exception as error:
                results[name][case["name"]] = {"error": f"{type(error).__name__}: {error}"}
    json.dump(results, sys.stdout)


main()
