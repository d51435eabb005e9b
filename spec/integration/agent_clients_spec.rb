# frozen_string_literal: true

require "open3"
require "puma"
require "puma/server"
require "tmpdir"

# Clients of every API work through conversations with reasoning and tools, against models that say what is written
# here. Everything between their tokens and the clients is real.
RSpec.describe "clients of agents" do
  include ScriptedRuns

  template = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}" \
             "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>{# <think> <tool_call> #}"
  call = ->(name, **given) { "<tool_call>\n#{JSON.generate(name: name, arguments: given)}\n</tool_call>" }
  thinks = ->(thought, said) { "<think>\n#{thought}\n</think>\n\n#{said}" }
  # What the model said in the session of a coding agent, turn by turn.
  session = [
    thinks["I need to see the code first.",
           "Plan:\n1. Read both files.\n2. Fix the operator.\n3. Run the tests.\n" \
           "#{call["read_file", path: "sum.py"]}\n#{call["read_file", path: "test_sum.py"]}"],
    thinks["It subtracts.", "It subtracts where it should add.\n#{call["edit_file", path: "sum.py", old: "a -b",
                                                                                    new: "a + b"]}"],
    thinks["The spaces differ.", call["edit_file", path: "sum.py", old: "a - b", new: "a + b"]],
    thinks["Now the tests.", call["run_tests"]],
    thinks["All is well.", "Done: `sum.py` adds now, and its test passes."]
  ]
  # The results that a conversation has so far say which turn it is.
  turns = [0, nil, 1, 2, 3, 4]
  says = lambda do |prompt|
    results = prompt.scan("<tool>").size
    case prompt
    when /Fix sum.py/ then session.fetch(turns.fetch(results))
    when /weather\?/
      next thinks["All told.", "It is sunny in both."] if results.positive?

      thinks["I look in two cities.", "Wait.\n#{call["weather", city: "Rome"]}\n#{call["weather", city: "Oslo"]}"]
    else thinks["I add.", "It is 4."]
    end
  end

  before do
    llm = ScriptedRuns.model(template)
    allow(llm).to receive(:_begin) do |ids, settings|
      text = says.call(llm.tokenizer.decode(ids.to_a))
      ScriptedRuns::Run.new(llm.tokenizer, llm.tokenizer.encode(text, add_special_tokens: false), ids.to_a, settings)
    end
    models = { "thinker" => { source: llm, kind: :llm }, "roomy" => RoomyLLM.path,
               "embedder" => ServedModels.models["embedder"] }
    @puma = Puma::Server.new(Candle::Server.new(models: models))
    @port = @puma.add_tcp_listener("127.0.0.1", 0).addr[1]
    @puma.run
  end
  after { @puma.stop(true) }

  def check(client, python, reason)
    skip(reason) unless python
    Dir.mktmpdir do |folder|
      File.write("#{folder}/sum.py", "def add(a, b):\n    return a - b\n")
      File.write("#{folder}/test_sum.py", "from sum import add\nassert add(2, 3) == 5\nprint('passed')\n")
      script = File.join(Clients::SCRIPTS, "agents.py")
      output, status = Open3.capture2e({ "NO_PROXY" => "127.0.0.1" }, python, script, client,
                                       "http://127.0.0.1:#{@port}", folder)
      expect(status).to be_success, output
    end
  end

  it("of OpenAI: chats and responses") { check("openai", *Clients.python) }
  it("of Anthropic: a coding agent repairs a program") { check("anthropic", *Clients.python) }
  it("of Ollama") { check("ollama", *Clients.python) }
  it("of LangChain") { check("langchain", *Clients.langchain) }
end
