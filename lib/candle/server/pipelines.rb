# frozen_string_literal: true

module Candle
  class Server
    # What the hub's inference service offers beside texts and their vectors, in the form that its client asks for it:
    # `{inputs, parameters}`, or an image as the body.
    #
    # @api private
    class Pipelines < TEI
      # @param request [Request]
      # @return [Array] an answer of Rack: texts in another language
      def translate(request)
        rewritten(request, :translation_text, "task" => "translate", "from" => parameters(request)["src_lang"],
                                              "to" => parameters(request)["tgt_lang"])
      end

      # @param request [Request]
      # @return [Array] an answer of Rack: shorter texts
      def summarize(request)
        rewritten(request, :summary_text, "task" => "summarize")
      end

      # @param request [Request]
      # @return [Array] an answer of Rack: what else the model makes of texts
      def rewrite(request)
        rewritten(request, :generated_text)
      end

      # Labels of an image: the model's own, or those that are given for a model of texts and images.
      #
      # @param request [Request]
      # @return [Array] an answer of Rack: labels and scores, best first
      def classify_image(request)
        given = parameters(request)
        kinds = given.key?("candidate_labels") ? [:clip] : %i[image_classifier clip]
        entry = models.fetch(model_name(request), *kinds)
        images, single = pictures(request)
        top = given["top_k"]
        unless top.nil? || (top.is_a?(Integer) && top.positive?)
          raise invalid("top_k must be a positive number", param: "parameters")
        end

        lists = compute(request) { labels(entry, images, given) }
        json(single ? lists.first : lists)
      end

      # @param request [Request]
      # @return [Array] an answer of Rack: what can be seen on images
      def describe(request)
        entry = models.fetch(model_name(request), :vlm)
        asked = parameters(request).fetch("prompt", VLM::DESCRIBE)
        raise invalid("prompt must be a text", param: "parameters") unless asked.is_a?(String)

        options = { temperature: 0, max_length: length(request) || [limits.max_tokens, 256].min }
        runs = pictures(request).first.map do |picture|
          answer_to(entry, [{ role: "user", content: ChatMessages.content_of([asked], [picture]) }],
                    options: options, usual: {}, fields: {})
        end
        json(compute(request) { runs.map { |run| { generated_text: run.run.text } } })
      end

      private

      def model_name(request)
        request.picture ? nil : request.field("model", String, default: nil)
      end

      def parameters(request)
        request.picture ? {} : request.field("parameters", Hash, default: {})
      end

      # @return [Array(Array<Picture>, Boolean)] the images, and whether a single one was given
      def pictures(request)
        return [[request.picture], true] if request.picture

        inputs = request.field("inputs", String, Array)
        list = inputs.is_a?(Array) ? inputs : [inputs]
        check_batch(list, "inputs")
        [list.each_with_index.map { |value, index| Picture.read(value, "inputs[#{index}]", bare: true) },
         inputs.is_a?(String)]
      end

      def labels(entry, images, given)
        top = given["top_k"]
        return entry.model.classify(images, top_k: top) if entry.kind == :image_classifier

        unless strings?(given["candidate_labels"])
          raise invalid("candidate_labels must be an array of texts", param: "parameters")
        end

        template = { template: given["hypothesis_template"] }.compact
        found = entry.model.classify_image(images, given["candidate_labels"], **template)
        top ? found.map { |list| list.take([top, list.size].min) } : found
      end

      def rewritten(request, name, fields = {})
        entry = models.fetch(model_name(request), :seq2seq)
        inputs = texts(request.field("inputs", String, Array), "inputs").first
        more = parameters(request).fetch("generate_parameters", {})
        raise invalid("generate_parameters must be an object", param: "parameters") unless more.is_a?(Hash)

        rewriting = answer_to(entry, "", options: { max_length: length(request) }, usual: {},
                                         fields: more.merge(fields))
        json(compute(request) { rewriting.all(inputs).map { |found| { name => found.text } } })
      end

      # @return [Integer, nil] how many tokens at most
      def length(request)
        given = parameters(request)
        count = given.dig("generate_parameters", "max_new_tokens") || given["max_new_tokens"]
        return count if count.nil? || (count.is_a?(Integer) && count.between?(1, limits.max_tokens))

        raise invalid("max_new_tokens must be from 1 to #{limits.max_tokens}", param: "parameters")
      end
    end
  end
end
