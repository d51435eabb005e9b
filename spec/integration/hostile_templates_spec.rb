# frozen_string_literal: true

require "timeout"

# Chat templates are programs by strangers: none may end the process, fill its memory, or outlast an interrupt.
RSpec.describe "Hostile chat templates" do
  tokenizer = File.expand_path("../fixtures/tokenizers/byte_level_bpe/tokenizer.json", __dir__)
  loops = "{% for a in range(9999) %}{% for b in range(9999) %}{{ a * b }}{% endfor %}{% endfor %}"

  it "are refused with a clear error, within bounded memory and time" do
    script = <<~RUBY
      Process.setrlimit(Process::RLIMIT_AS, 3 << 30)
      tokenizer = Candle::Tokenizer.from_file(#{tokenizer.inspect})
      grow = ->(start, step) { "{% set n = namespace(s=\#{start}) %}{% for i in range(90000) %}{% set n.s = \#{step} %}{% endfor %}" }
      templates = [
        "{{ " + "not " * 20_000 + "1 }}", "{{ " + "-" * 20_000 + "1 }}", "{{ 1" + " + 1" * 20_000 + " }}",
        "{{ x" + ".a" * 20_000 + " }}", "{{ 1" + "|abs" * 20_000 + " }}", "{{ " + "(" * 20_000 + " }}",
        "{% if 1 %}" * 20_000, "{% set n = namespace() %}{% set n.s = n %}{{ n }}",
        grow["'ab'", "n.s + n.s"], grow["[1]", "n.s + n.s"], grow["[1]", "[n.s]"], grow["'a'", "n.s|replace('', 'ab')"],
        "{{ 'x'|indent(9999999999) }}", "{{ [1]|slice(9999999999)|list }}", "{{ '%1000000000d'|format(1) }}",
        "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", #{loops.inspect}
      ]
      templates.each do |template|
        started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
        tokenizer.apply_chat_template([{ role: "user", content: "Hi" }], chat_template: template)
        puts "accepted \#{template[0, 40]}"
      rescue Candle::InvalidInputError, Candle::UnsupportedModelError => error
        took = Process.clock_gettime(Process::CLOCK_MONOTONIC) - started
        puts "slow: \#{took} \#{template[0, 40]}" if took > 30
        puts "unclear: \#{error.message}" unless error.message.start_with?("the chat template")
      end
      puts "alive " + tokenizer.apply_chat_template([{ role: "user", content: "Hi" }], chat_template: "{{ messages[0].content }}")
    RUBY
    output, errors, status = run_ruby(script)
    expect([output, status.success?]).to eq(["alive Hi\n", true]), "#{output}\n#{errors}"
  end

  it "end by Timeout at once" do
    model = Candle::Tokenizer.from_file(tokenizer)
    render = -> { model.apply_chat_template([{ role: "user", content: "Hi" }], chat_template: loops) }
    elapsed = seconds { expect { Timeout.timeout(0.1) { render.call } }.to raise_error(Timeout::Error) }
    expect(elapsed).to be < 0.3
  end

  it "leave the threads of the pool to others, and the process to SIGTERM" do
    output, errors, status = run_ruby(<<~RUBY)
      tokenizer = Candle::Tokenizer.from_file(#{tokenizer.inspect})
      render = ->(template) { tokenizer.apply_chat_template([{ role: "user", content: "Hi" }], chat_template: template) }
      slow = Array.new(Candle.num_threads + 1) { Thread.new { loop { render.call(#{loops.inspect}) rescue nil } } }
      sleep 0.3
      now = -> { Process.clock_gettime(Process::CLOCK_MONOTONIC) }
      started = now.call
      puts render.call("{{ messages[0].content }}"), Candle::Tensor.ones([2, 3]).sum.item
      puts now.call - started
      puts slow.count(&:alive?) - slow.size
      $stdout.flush
      at_exit { puts now.call - started }
      started = now.call
      Process.kill(:TERM, Process.pid)
      sleep 30
    RUBY
    *answers, waited, lost, until_end = output.lines.map(&:chomp)
    expect([answers, lost, status.termsig]).to eq([["Hi", "6.0"], "0", Signal.list["TERM"]]), errors
    expect([waited, until_end].map(&:to_f)).to all(be < 3)
  end
end
