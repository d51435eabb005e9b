# frozen_string_literal: true

module Candle
  class Server
    # The conversation and the tools of Anthropic's Messages, as messages and tools of OpenAI's chats.
    #
    # @api private
    module AnthropicInput
      # Blocks of what the model thought before an earlier answer; the template decides what it is told of them.
      THOUGHTS = %w[thinking redacted_thinking].freeze
      # What stands between two turns of the same role, which become one.
      BETWEEN = { "type" => "text", "text" => "\n\n" }.freeze
      private_constant :THOUGHTS, :BETWEEN

      class << self
        # @param list [Array] messages, with content as a text or as blocks
        # @param system [String, Array, nil] instructions, as a text or as blocks
        # @param images [Boolean] whether the model takes images
        # @return [Array<Hash>] as {ChatMessages.read} takes them
        # @raise [Problem] 400, naming the message
        def messages(list, system, images:)
          names = {}
          told = list.each_with_index.flat_map { |message, index| turn(message, "messages[#{index}]", names, images) }
          raise problem("messages must not be empty") if told.empty?
          if told.last["role"] == "assistant"
            raise problem("the last message must be one of the user: this server does not continue an answer")
          end

          [*instructions(system), *joined(told)]
        end

        # @param list [Array] tools with a name and an `input_schema`
        # @return [Array<Tool>]
        # @raise [Problem] 400, naming the tool
        def tools(list)
          tools = list.each_with_index.map { |value, index| tool(value, "tools[#{index}]") }
          twice = tools.map(&:name).tally.find { |_, count| count > 1 }
          raise problem("tools has two tools with the name #{twice.first}", "tools") if twice

          tools
        end

        # @param thinking [Hash] `enabled` with `budget_tokens`, `adaptive` or `disabled`
        # @return [Symbol, Boolean, Hash] as {LLM#complete} takes it
        # @raise [Problem] 400
        def reasoning(thinking)
          case thinking["type"]
          when "disabled" then false
          when "adaptive" then true
          when "enabled"
            budget = thinking["budget_tokens"]
            return { budget: budget } if budget.is_a?(Integer) && budget.positive?

            raise problem("thinking.budget_tokens must be a positive number", "thinking")
          else raise problem("the type of thinking must be enabled, adaptive or disabled", "thinking")
          end
        end

        # @param choice [Hash] `auto`, `any`, `tool` or `none`
        # @param tools [Array<Tool>]
        # @return [Symbol, String] as {Generation} takes it
        # @raise [Problem] 400
        def tool_choice(choice, tools)
          case choice["type"]
          when "auto" then :auto
          when "none" then :none
          when "any" then tools.any? ? :required : raise(problem("tool_choice any needs tools", "tool_choice"))
          when "tool" then named(choice["name"], tools)
          else raise problem("the type of tool_choice must be auto, any, tool or none", "tool_choice")
          end
        end

        private

        def tool(value, name)
          unless value.is_a?(Hash) && [nil, "custom"].include?(value["type"])
            raise problem("#{name} must be a tool of the client: this server has no tools of its own", "tools")
          end
          unless value["input_schema"].is_a?(Hash)
            raise problem("the input_schema of #{name} must be a JSON schema", "tools")
          end

          function = value.slice("name", "description").merge("parameters" => value["input_schema"])
          ChatMessages.tool({ "function" => function }, name)
        end

        def named(name, tools)
          return name if tools.any? { |tool| tool.name == name }

          raise problem("the name of tool_choice must be that of one of the tools", "tool_choice")
        end

        def instructions(system)
          return [] if system.nil? || system.empty?

          [spoken("system", texts(blocks(system, "system", "system")))]
        end

        # @return [Array<Hash>] a message, or several: results of tools are messages of their own
        def turn(message, name, names, images)
          raise problem("#{name} must be an object with a role") unless message.is_a?(Hash)

          inner = blocks(message["content"], "#{name}.content", "messages")
          case message["role"]
          when "user" then user(inner, names, images)
          when "assistant" then [assistant(inner, names)]
          when "system" then [spoken("system", texts(inner))]
          else raise problem("the role of #{name} must be user, assistant or system")
          end
        end

        # @return [Array<Array(String, Hash)>] each block with where it stands
        def blocks(content, place, param)
          return [[place, { "type" => "text", "text" => content }]] if content.is_a?(String)
          unless content.is_a?(Array) && content.any?
            raise problem("#{place} must be a text or an array of blocks", param)
          end

          content.each_with_index.map do |block, index|
            unless block.is_a?(Hash) && block["type"].is_a?(String)
              raise problem("#{place}[#{index}] must be a block with a type", param)
            end

            ["#{place}[#{index}]", block]
          end
        end

        def user(blocks, names, images)
          results = ->(block) { block["type"] == "tool_result" }
          blocks.slice_when { |(_, one), (_, other)| [one, other].any?(&results) }.map do |group|
            name, block = group.first
            next result(block, name, names) if results.call(block)

            spoken("user", group.map { |place, part| part(part, place, images) })
          end
        end

        def part(block, name, images)
          case block["type"]
          when "text" then text(block, name)
          when "image"
            raise problem("#{name} is an image, and the model takes text only") unless images

            { "type" => "image_url", "image_url" => { "url" => url(block["source"], "#{name}.source") } }
          else raise unknown(block, name)
          end
        end

        def texts(blocks)
          blocks.map { |name, block| block["type"] == "text" ? text(block, name) : raise(unknown(block, name)) }
        end

        def text(block, name)
          raise problem("the text of #{name} must be a String") unless block["text"].is_a?(String)

          block.slice("type", "text")
        end

        def url(source, name)
          unless source.is_a?(Hash) && source["type"] == "base64"
            raise problem("#{name} must be of the type base64: this server fetches nothing")
          end

          type, data = source.values_at("media_type", "data")
          unless type.is_a?(String) && type.match?(%r{\Aimage/[\w.+-]+\z}) && data.is_a?(String)
            raise problem("#{name} must have the media_type of an image, and data in base64")
          end

          "data:#{type};base64,#{data}"
        end

        def result(block, name, names)
          id = block["tool_use_id"]
          raise problem("the tool_use_id of #{name} must be the id of an earlier tool_use block") unless names.key?(id)

          text = block["content"].nil? ? "" : result_text(block["content"], name)
          text = "Error: #{text}" if block["is_error"] == true
          { "role" => "tool", "tool_call_id" => id, "name" => names[id], "content" => text }
        end

        def result_text(content, name)
          return "" if content == []

          texts(blocks(content, "#{name}.content", "messages")).map { |part| part["text"] }.join
        end

        def assistant(blocks, names)
          thoughts, blocks = blocks.partition { |_, block| THOUGHTS.include?(block["type"]) }
          uses, others = blocks.partition { |_, block| block["type"] == "tool_use" }
          thought = thoughts.map { |_, block| block["thinking"] }.grep(String).join("\n\n")
          spoken("assistant", texts(others), uses.map { |name, block| call(block, name, names) })
            .merge(thought.empty? ? {} : { "reasoning_content" => thought })
        end

        def call(block, name, names)
          id, called, input = block.values_at("id", "name", "input")
          unless [id, called].all? { |value| value.is_a?(String) && !value.empty? } && input.is_a?(Hash)
            raise problem("#{name} must have an id, a name and an input that is an object")
          end

          names[id] = called
          { "id" => id, "function" => { "name" => called, "arguments" => input } }
        end

        # Templates want roles to take turns.
        def joined(list)
          list.slice_when { |one, other| one["role"] != other["role"] || one["role"] == "tool" }
              .map { |turns| turns.size == 1 ? turns.first : one_turn(turns) }
        end

        def one_turn(turns)
          parts = turns.map { |turn| turn["content"] }.reject(&:empty?).flat_map { |content| [BETWEEN, *content] }
          thought = turns.filter_map { |turn| turn["reasoning_content"] }.join("\n\n")
          spoken(turns.first["role"], parts.drop(1), turns.flat_map { |turn| turn["tool_calls"].to_a })
            .merge(thought.empty? ? {} : { "reasoning_content" => thought })
        end

        def spoken(role, parts, calls = [])
          { "role" => role, "content" => parts }.merge(calls.empty? ? {} : { "tool_calls" => calls })
        end

        def unknown(block, name)
          problem("#{name} is of the type #{block["type"][0, 40]}, which this server does not take there")
        end

        def problem(message, param = "messages")
          Problem.new(400, "invalid_request", message, param: param)
        end
      end
    end
  end
end
