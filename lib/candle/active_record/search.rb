# frozen_string_literal: true

module Candle
  module ActiveRecord
    # One search for nearest records: the query that finds them, and what is done with its rows.
    #
    # @api private
    class Search
      # pgvector's operators, and the functions of sqlite-vec.
      DISTANCES = {
        cosine: { postgresql: "<=>", sqlite: "vec_distance_cosine" },
        euclidean: { postgresql: "<->", sqlite: "vec_distance_L2" },
        inner_product: { postgresql: "<#>" }
      }.freeze

      # @param relation [ActiveRecord::Relation] what is searched
      # @param embedding [Embedding]
      # @param vector [String] packed little-endian f32
      # @param limit [Integer] how many records are wanted
      # @param distance [Symbol] one of {DISTANCES}
      # @param candidates [Integer, nil] how many the signs find for each search by vectors
      def initialize(relation, embedding, vector, limit:, distance: :cosine, candidates: nil)
        @relation = relation
        @klass = relation.klass
        @embedding = embedding
        @vector = vector
        @limit = Arguments.count(limit, "limit") || raise(ArgumentError, "limit must be a positive Integer, not nil")
        @distance = Arguments.choice(distance, "distance", DISTANCES.keys)
        @candidates = [Arguments.count(candidates, "candidates") || (10 * @limit), @limit].max
        @adapter = Store.adapter(@klass.connection)
        check_prepared_statements if @adapter == :postgresql
      end

      # @return [ActiveRecord::Relation, Array<ActiveRecord::Base>] nearest first, each with its `neighbor_distance`
      def results
        return scanned if @adapter == :sqlite && !extension?

        found = by_signs? ? candidates : @relation.where.not(@embedding.column => nil)
        return rescored(found) if rescored?

        ordered(found, distance_to(@embedding.column, type)).limit(@limit)
      end

      private

      def scanned
        Scan.new(@relation, @embedding, @vector, limit: @limit, distance: @distance).results(loaded_columns(false))
      end

      def type
        @embedding.type(@klass)
      end

      # Bits and, in PostgreSQL, signed bytes are compared here, with the query's own numbers: no index orders them.
      def rescored?
        type == :bit || (type == :int8 && @adapter == :postgresql)
      end

      def signs
        type == :bit ? @embedding.column : @embedding.bits
      end

      def by_signs?
        return true if signs
        return false unless rescored?

        raise ArgumentError, "a column of signed bytes can't be ordered by PostgreSQL: add a column of bits beside " \
                             "#{@embedding.column} (add_embedding with bits: true) and name it in has_embedding"
      end

      # The rows whose signs differ least from the query's, as a table of the same name.
      def candidates
        known = @relation.where.not(signs => nil)
        inner = ordered(known, distance_to(signs, :bit), all_columns: true).limit(@candidates)
        return inner if rescored?

        @klass.unscoped.from(inner, @klass.quoted_table_name)
      end

      # @return [Array<ActiveRecord::Base>]
      def rescored(relation)
        records = relation.to_a
        query = Tensor.from_packed(@vector, [@vector.bytesize / 4], :f32)
        rows = records.map { |record| numbers(record[@embedding.column]) }
        return [] if rows.empty?

        Tensor.new(rows, :f32).nearest(query, top_k: @limit).map do |index, score|
          records[index].tap { |record| record[:neighbor_distance] = 1.0 - score }
                        .tap { |record| record.clear_attribute_changes(["neighbor_distance"]) }
        end
      end

      def numbers(value)
        value.is_a?(String) ? Codec.signs(value) : value
      end

      def ordered(relation, expression, all_columns: false)
        relation = relation.select(*loaded_columns(all_columns)) if relation.select_values.empty?
        relation = relation.select(Arel::Nodes::As.new(expression, Arel.sql("neighbor_distance")))
        relation.reorder(expression)
      end

      # Vectors stay in the database, where nothing needs them here.
      def loaded_columns(all_columns)
        hidden = all_columns ? [] : [@embedding.column, *@embedding.bits]
        (@klass.column_names - hidden).map { |name| @klass.arel_table[name] }
      end

      def distance_to(column, kind)
        attribute = @klass.arel_table[column]
        return Arel::Nodes::InfixOperation.new(operator(kind), attribute, query_bind(kind)) if @adapter == :postgresql

        function = kind == :bit ? "vec_distance_hamming" : operator(kind)
        arguments = [attribute, query_bind(kind)]
        wrapper = { bit: "vec_bit", int8: "vec_int8" }[kind]
        arguments = arguments.map { |argument| Arel::Nodes::NamedFunction.new(wrapper, [argument]) } if wrapper
        Arel::Nodes::NamedFunction.new(function, arguments)
      end

      def operator(kind)
        return "<~>" if kind == :bit

        DISTANCES.fetch(@distance)[@adapter] ||
          raise(ArgumentError, "#{@adapter} has no distance #{@distance.inspect}: use :cosine or :euclidean")
      end

      def query_bind(kind)
        data = ::ActiveModel::Type::Binary::Data.new(Codec.encode(@vector, kind, @adapter))
        attribute = ::ActiveRecord::Relation::QueryAttribute.new("query", data, ::ActiveModel::Type::Value.new)
        Arel::Nodes::BindParam.new(attribute)
      end

      def check_prepared_statements
        return if @klass.connection.prepared_statements

        raise Error, "vectors are sent to PostgreSQL as bytes of bound parameters, which this connection does not " \
                     "have: remove prepared_statements: false from its configuration"
      end

      # Whether this connection has sqlite-vec.
      def extension?
        @klass.connection.select_value("SELECT vec_version()") && true
      rescue ::ActiveRecord::StatementInvalid
        false
      end
    end
  end
end
