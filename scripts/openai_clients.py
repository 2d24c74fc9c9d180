"""Drives a running server with the official Python package. Usage: openai_clients.py PORT"""

import sys
import time

import openai
from openai import OpenAI

client = OpenAI(base_url=f"http://127.0.0.1:{sys.argv[1]}/v1", api_key="unused", max_retries=0)
SPAIN = [{"role": "user", "content": "What is the capital of Spain?"}]
MADRID = "The capital of Spain is Madrid."
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
RAW = "<|im_start|>user\nWhat is the capital of Spain?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def ask(**changes):
    return client.chat.completions.create(
        **{"model": "pip", "messages": SPAIN, "temperature": 0, "extra_body": NO_THINKING, **changes})


def models():
    assert [model.id for model in client.models.list()] == ["pip"]
    assert client.models.retrieve("pip").object == "model"


def whole():
    answer = ask()
    assert answer.choices[0].message.content == MADRID
    assert answer.choices[0].finish_reason == "stop"
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens == usage.prompt_tokens + 9
    assert usage.prompt_tokens_details.cached_tokens >= 0
    assert answer._request_id


def streamed():
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == MADRID
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 9
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert all(chunk.choices for chunk in ask(stream=True))


def stream_helper():
    with client.chat.completions.stream(model="pip", messages=SPAIN, temperature=0, extra_body=NO_THINKING) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.content == MADRID


def thinking():
    answer = ask(extra_body={}).choices[0].message
    assert answer.content == MADRID
    assert answer.reasoning_content.endswith("Madrid.") and "think>" not in answer.reasoning_content
    deltas = [chunk.choices[0].delta for chunk in ask(extra_body={}, stream=True)]
    thoughts = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert thoughts == answer.reasoning_content


def history():
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    first = ask().choices[0].message
    messages = [
        {"role": "system", "content": "Be brief."}, {"role": "developer", "content": "Be kind."}, *SPAIN, first,
        {"role": "user", "content": [{"type": "text", "text": "What is 1 + 2?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
    ]
    assert ask(messages=messages, max_tokens=8).usage.prompt_tokens > 60


def stops():
    assert ask(stop=["drid"]).choices[0].message.content == "The capital of Spain is Ma"
    assert ask(stop="capital of S").choices[0].message.content == "The "
    cut = ask(max_completion_tokens=2).choices[0]
    assert (cut.message.content, cut.finish_reason) == ("The capital", "length")


def completions():
    answer = client.completions.create(model="pip", prompt=RAW, temperature=0)
    assert answer.choices[0].text == MADRID and answer.object == "text_completion"
    chunks = list(client.completions.create(model="pip", prompt=RAW, temperature=0, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == MADRID


def errors():
    def refused(kind, param, **changes):
        for stream in (False, True):
            try:
                answer = ask(**changes, stream=stream)
                list(answer)
            except kind as error:
                assert error.param == param, (error.param, param)
                assert error.request_id
            else:
                raise AssertionError(f"{param} was accepted")

    refused(openai.BadRequestError, "temperature", temperature=-1)
    refused(openai.BadRequestError, "stop", stop=[""])
    refused(openai.BadRequestError, "logit_bias", logit_bias={"Madrid": 1})
    refused(openai.BadRequestError, "tools", tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])
    refused(openai.BadRequestError, "response_format", response_format={"type": "json_object"})
    refused(openai.BadRequestError, "unheard_of", extra_body={"unheard_of": 1})
    refused(openai.BadRequestError, "messages", messages=[{"role": "user", "content": "word " * 5000}])
    refused(openai.NotFoundError, "model", model="gpt-4o")


def cancel():
    bias = {"6111": -100, "6113": -100}
    stream = ask(stream=True, max_tokens=4000, logit_bias=bias)
    for _, _chunk in zip(range(3), stream):
        pass
    stream.close()
    start = time.monotonic()
    assert ask().choices[0].message.content == MADRID
    try:
        ask(max_tokens=4000, logit_bias=bias, timeout=1)
    except openai.APITimeoutError:
        pass
    else:
        raise AssertionError("no timeout")
    assert ask().choices[0].message.content == MADRID
    print(f"  answered {time.monotonic() - start:.1f} s after the first of two cancelled answers")


for check in [models, whole, streamed, stream_helper, thinking, history, stops, completions, errors, cancel]:
    check()
    print(f"python {openai.__version__}: {check.__name__} ok", flush=True)
