# frozen_string_literal: true

require "fileutils"
require "json"
require "tmpdir"

# A tiny language model with room for a conversation, and a chat template that knows tools.
module RoomyLLM
  TEMPLATE = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}" \
             "{% for m in messages %}<{{ m.role }}>{{ m.content }}" \
             "{% for c in m.tool_calls or [] %}!{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}" \
             "{% endfor %}<assistant>"

  module_function

  # @return [String] its directory, the same each time
  def path
    @path ||= made(TEMPLATE)
  end

  # @return [String] the directory of one whose prompts open reasoning
  def thinking
    @thinking ||= made("#{TEMPLATE}<think>")
  end

  def made(template)
    Dir.mktmpdir("roomy").tap do |directory|
      owner = Process.pid
      at_exit { FileUtils.rm_rf(directory) if Process.pid == owner }
      FileUtils.cp_r("#{TinyModels.path("decoders/llama")}/.", directory)
      change(directory, "tokenizer_config.json", "chat_template" => template)
      change(directory, "config.json", "max_position_embeddings" => 1024)
    end
  end

  def change(directory, name, values)
    path = File.join(directory, name)
    File.write(path, JSON.generate(JSON.parse(File.read(path)).merge(values)))
  end
end
