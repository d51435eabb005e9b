# frozen_string_literal: true

require "json"

module Candle
  # Conversations with tools, for chat templates that know them and for those that do not.
  #
  # @api private
  module ToolMessages
    INSTRUCTIONS = <<~TEXT
      You can call these tools, each described by a JSON schema:
      <tools>
      %<tools>s
      </tools>
      To call one, write its name and arguments as JSON inside <tool_call> tags, and nothing else:
      <tool_call>
      {"name": "the tool's name", "arguments": {"argument": "value"}}
      </tool_call>
      You are then given the result. When no tool is needed, answer in plain words.
    TEXT

    module_function

    # For templates that write calls themselves: a message's content is then what stands around the calls.
    #
    # @param messages [Array<Hash>]
    # @return [Array<Hash>]
    def native(messages)
      Messages.rewritten(messages) do |message|
        next message unless field(message, :tool_calls)

        text = ToolCallParser.parse(field(message, :content)).text_response
        message.transform_keys(&:to_sym).merge(content: text.to_s)
      end
    end

    # For the others: instructions, calls and results become text of the three usual roles.
    #
    # @param messages [Array<Hash>]
    # @param tools [Array<Tool>]
    # @param system [Boolean] whether the template takes a system message
    # @return [Array<Hash>]
    def plain(messages, tools, system: true)
      told = messages.map { |message| plain_message(message) }
      joined = told.slice_when { |one, other| !(result?(one) && result?(other)) }.map do |group|
        group.first.slice(:role).merge(content: group.map { |message| message[:content] }.join("\n"))
      end
      Messages.like(messages, tools.empty? ? joined : instructed(joined, instructions(tools), system))
    end

    # @param calls [Array<ToolCall>]
    # @param result [ToolCallResult]
    # @return [Hash] the message of an assistant that calls tools
    def assistant(result)
      calls = result.tool_calls.each_with_index.map do |call, index|
        { id: id_of(call, index), type: "function", function: { name: call.name, arguments: call.arguments } }
      end
      { role: "assistant", content: result.raw_response, tool_calls: calls,
        **{ reasoning_content: (result.reasoning if result.respond_to?(:reasoning)) }.compact }
    end

    # @param outcome [Hash] `{tool_call:, result:, error:}`
    # @return [Hash] the message that tells the model
    def tool(outcome, index)
      call = outcome[:tool_call]
      content = outcome[:error] ? "Error: #{outcome[:error]}" : text_of(outcome[:result])
      { role: "tool", name: call&.name.to_s, tool_call_id: id_of(call, index), content: content }
    end

    # @return [String] a result as the model reads it
    def text_of(result)
      result.is_a?(String) ? result : JSON.generate(result)
    rescue JSON::GeneratorError
      result.to_s.scrub
    end

    # Some templates insist on nine letters and digits.
    #
    # @param call [ToolCall, nil]
    # @param index [Integer]
    # @return [String] what the call is known by
    def id_of(call, index)
      call&.id || format("call%05d", index)
    end

    def instructions(tools)
      format(INSTRUCTIONS, tools: Tool.definitions(tools).map { |definition| JSON.generate(definition) }.join("\n"))
    end

    def instructed(messages, text, system)
      index = messages.index { |message| message[:role] == (system ? "system" : "user") }
      return [{ role: system ? "system" : "user", content: text }, *messages] unless index

      messages.each_with_index.map do |message, at|
        at == index ? message.merge(content: "#{text}\n#{message[:content]}") : message
      end
    end

    def plain_message(message)
      role = field(message, :role).to_s
      content = field(message, :content).to_s
      return { role: "user", content: "<tool_response>\n#{content}\n</tool_response>" } if role == "tool"

      calls = Array(field(message, :tool_calls))
      return { role: role, content: content } if calls.empty? || ToolCallParser.parse(content).has_tool_calls?

      { role: role, content: [content, *calls.map { |call| call_text(call) }].reject(&:empty?).join("\n") }
    end

    def call_text(call)
      function = field(call, :function) || call
      json = JSON.generate({ "name" => field(function, :name), "arguments" => field(function, :arguments) })
      "<tool_call>\n#{json}\n</tool_call>"
    end

    def result?(message)
      message[:role] == "user" && message[:content].start_with?("<tool_response>")
    end

    def field(hash, name)
      hash[name] || hash[name.to_s]
    end
    private_class_method :instructions, :instructed, :plain_message, :call_text, :result?, :field
  end
end
